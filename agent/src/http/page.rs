//! `/` and `/page/FILE`: the agent's page, which reads the API and shows it. Its files are part of the program.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, content type and text of each file below `/page/`.
const FILES: [(&str, &str, &str); 25] = [
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("brush.js", SCRIPT, include_str!("page/brush.js")),
    ("captures.js", SCRIPT, include_str!("page/captures.js")),
    ("cells.js", SCRIPT, include_str!("page/cells.js")),
    ("compare.js", SCRIPT, include_str!("page/compare.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("events.js", SCRIPT, include_str!("page/events.js")),
    ("format.js", SCRIPT, include_str!("page/format.js")),
    ("heatmap.js", SCRIPT, include_str!("page/heatmap.js")),
    ("linechart.js", SCRIPT, include_str!("page/linechart.js")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("marks.js", SCRIPT, include_str!("page/marks.js")),
    ("metric.js", SCRIPT, include_str!("page/metric.js")),
    ("notice.js", SCRIPT, include_str!("page/notice.js")),
    ("overview.js", SCRIPT, include_str!("page/overview.js")),
    ("place.js", SCRIPT, include_str!("page/place.js")),
    ("probes.js", SCRIPT, include_str!("page/probes.js")),
    ("ranking.js", SCRIPT, include_str!("page/ranking.js")),
    ("report.js", SCRIPT, include_str!("page/report.js")),
    ("stacks.js", SCRIPT, include_str!("page/stacks.js")),
    ("status.js", SCRIPT, include_str!("page/status.js")),
    ("timechart.js", SCRIPT, include_str!("page/timechart.js")),
    ("timeline.js", SCRIPT, include_str!("page/timeline.js")),
];

/// Everything comes from the agent itself, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The files with what a browser may keep of them.
pub(super) struct Page {
    files: Vec<File>,
}

struct File {
    name: &'static str,
    content_type: &'static str,
    body: Bytes,
    etag: HeaderValue,
}

impl File {
    fn new(name: &'static str, content_type: &'static str, body: Bytes) -> File {
        let hash: String = Sha256::digest(&body).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let etag = HeaderValue::try_from(format!("\"{hash}\"")).expect("hexadecimal digits are a header's value");
        File { name, content_type, body, etag }
    }
}

impl Page {
    /// Of an agent of this version whose metrics are at this path.
    pub fn new(version: &str, telemetry_path: &str) -> Page {
        let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        let html = include_str!("page/index.html")
            .replace("{{version}}", &escaped(version))
            .replace("{{metrics}}", &escaped(telemetry_path.trim_start_matches('/')));
        let html = File::new("", "text/html; charset=utf-8", html.into());
        let files = FILES.map(|(name, content_type, text)| File::new(name, content_type, compact(text).into()));
        Page { files: [html].into_iter().chain(files).collect() }
    }

    /// The file of this name, none being the page itself; nothing but its headers for a browser that has it.
    pub fn answer(&self, name: &str, headers: &HeaderMap) -> Response {
        let Some(file) = self.files.iter().find(|file| file.name == name) else {
            return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
        };
        let has_it = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| contains(known, &file.etag));
        let mut response = match has_it {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => file.body.clone().into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.content_type));
        headers.insert(header::ETAG, file.etag.clone());
        // Another version of the agent may stand behind the same address a moment later: a browser asks each time whether its copy
        // is current.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
        response
    }
}

/// A script or style sheet without indentation and whole lines of comment, a sixth of it. No literal of the page has several lines.
fn compact(text: &str) -> String {
    let is_comment = |line: &str| line.starts_with("//") || (line.starts_with("/*") && line.ends_with("*/"));
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !is_comment(line));
    lines.fold(String::with_capacity(text.len()), |all, line| all + line + "\n")
}

/// Whether a list of entity tags has one; a proxy that packed the file has made it a weak one (`W/`).
fn contains(list: &HeaderValue, etag: &HeaderValue) -> bool {
    let tags = list.to_str().unwrap_or_default().split(',');
    tags.map(|tag| tag.trim().trim_start_matches("W/")).any(|tag| tag == "*" || tag.as_bytes() == etag.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What the page may weigh: it comes through `kubectl port-forward`, too.
    const MAX_BYTES: usize = 150_000;

    #[test]
    fn the_page_is_small_and_every_file_of_it_is_served() {
        let page = Page::new("1.2.3", "/metrics");
        let bytes: usize = page.files.iter().map(|file| file.body.len()).sum();
        assert!(bytes < MAX_BYTES, "{bytes}");
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/page");
        let stored: BTreeSet<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let served = page.files.iter().map(|file| if file.name.is_empty() { "index.html" } else { file.name });
        assert_eq!(stored, served.map(str::to_owned).collect());
    }

    #[test]
    fn no_literal_of_the_page_has_several_lines() {
        for (name, _, text) in FILES {
            let open = text.lines().position(|line| line.matches('`').count() % 2 == 1);
            assert_eq!(open, None, "{name}: indentation within a literal is lost");
        }
        assert_eq!(compact("// Why.\n  a;\n\n/** What. */\n  b * c;\n"), "a;\nb * c;\n");
    }

    #[test]
    fn files_name_no_other_place_and_nothing_absolute() {
        for file in Page::new("1.2.3", "/metrics").files {
            let text = std::str::from_utf8(&file.body).unwrap();
            for (line, text) in text.lines().enumerate().filter(|(_, text)| text.contains("//")) {
                let outside = text.contains("://") && !text.contains("http://www.w3.org/2000/svg");
                assert!(!outside, "{} line {}: {text}", file.name, line + 1);
            }
            for absolute in ["src=\"/", "href=\"/", "from \"/"] {
                assert!(!text.contains(absolute), "{}: {absolute}", file.name);
            }
        }
    }

    #[test]
    fn the_page_links_metrics_where_they_are() {
        let answer = Page::new("1.2.3<b>", "/deep/metrics");
        let html = String::from_utf8(answer.files[0].body.to_vec()).unwrap();
        assert!(html.contains("<a href=\"deep/metrics\">") && html.contains("1.2.3&lt;b>"), "{html}");
        assert!(!html.contains("{{"), "{html}");
    }

    #[test]
    fn a_browser_that_has_a_file_gets_no_body() {
        let page = Page::new("1.2.3", "/metrics");
        let first = page.answer("style.css", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let etag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        for (known, status) in [
            (etag.clone(), StatusCode::NOT_MODIFIED),
            (format!("\"other\", W/{etag}"), StatusCode::NOT_MODIFIED),
            ("*".to_owned(), StatusCode::NOT_MODIFIED),
            ("\"other\"".to_owned(), StatusCode::OK),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, known.parse().unwrap());
            let answer = page.answer("style.css", &headers);
            assert_eq!(answer.status(), status, "{known}");
            assert_eq!(answer.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert!(
                answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'")
            );
        }
        assert_eq!(page.answer("none.js", &HeaderMap::new()).status(), StatusCode::NOT_FOUND);
    }
}
