//! Which form of an answer the client wants.

use kstrobe_export::Format;

/// The only message that Prometheus asks for.
const MESSAGE: &str = "io.prometheus.client.MetricFamily";

/// The format an `Accept` header asks for: the one with the highest `q`, of equals the one named first. Without a header,
/// or when it names nothing we have, 0.0.4: an old scraper is better served than refused. Protobuf only when it is named.
pub fn format(accept: Option<&str>) -> Format {
    let mut best = (0.0, Format::Text004);
    for range in accept.unwrap_or("").split(',') {
        let (media, parameters) = parse(range);
        let version = parameter(parameters, "version");
        let format = match media.as_str() {
            "application/openmetrics-text" if matches!(version, None | Some("1.0.0" | "0.0.1")) => {
                Format::OpenMetrics100
            }
            "text/plain" if matches!(version, None | Some("0.0.4")) => Format::Text004,
            "application/vnd.google.protobuf" if delimited_families(parameters) => Format::Protobuf,
            "*/*" | "text/*" => Format::Text004,
            "application/*" => Format::OpenMetrics100,
            _ => continue,
        };
        let quality = quality(parameters);
        if quality > best.0 {
            best = (quality, format);
        }
    }
    best.1
}

/// Other encodings (`text`, `compact-text`) are for people. What is left out is taken for ours.
fn delimited_families(parameters: &str) -> bool {
    parameter(parameters, "proto").is_none_or(|proto| proto == MESSAGE)
        && parameter(parameters, "encoding").is_none_or(|encoding| encoding == "delimited")
}

/// Whether an `Accept-Encoding` header allows gzip.
pub fn accepts_gzip(accept_encoding: Option<&str>) -> bool {
    accept_encoding.unwrap_or("").split(',').any(|coding| {
        let (name, parameters) = parse(coding);
        (name == "gzip" || name == "x-gzip") && quality(parameters) > 0.0
    })
}

fn parse(range: &str) -> (String, &str) {
    let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
    (name.trim().to_ascii_lowercase(), parameters)
}

fn parameter<'a>(parameters: &'a str, wanted: &str) -> Option<&'a str> {
    let pairs = parameters.split(';').filter_map(|pair| pair.split_once('='));
    let mut matching = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
    matching.next().map(|(_, value)| value.trim().trim_matches('"'))
}

/// `q`, 1 by default; nonsense counts as 0.
fn quality(parameters: &str) -> f64 {
    let Some(text) = parameter(parameters, "q") else { return 1.0 };
    text.parse().ok().filter(|quality| (0.0..=1.0).contains(quality)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept() {
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                      application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                      text/plain;version=0.0.4;q=0.4,*/*;q=0.3";
        let for_people = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text,*/*;q=0.1";
        let remote_write = "application/vnd.google.protobuf;proto=prometheus.WriteRequest,*/*;q=0.1";
        for (accept, expected) in [
            (None, Format::Text004),
            (Some(""), Format::Text004),
            (Some("*/*"), Format::Text004),
            (Some("text/html"), Format::Text004),
            (Some(prometheus_3), Format::OpenMetrics100),
            (Some(native), Format::Protobuf),
            (Some(for_people), Format::Text004),
            (Some(remote_write), Format::Text004),
            (Some("application/vnd.google.protobuf"), Format::Protobuf),
            (Some("application/vnd.google.protobuf;q=0.1, text/plain"), Format::Text004),
            (Some("application/*"), Format::OpenMetrics100),
            (Some("text/plain;q=0.5, application/openmetrics-text; version=\"1.0.0\"; q=0.4"), Format::Text004),
            (Some("text/plain;version=0.0.4, application/openmetrics-text"), Format::Text004),
            (Some("application/openmetrics-text, text/plain"), Format::OpenMetrics100),
            (Some("Application/OpenMetrics-Text"), Format::OpenMetrics100),
            (Some("application/openmetrics-text;version=2.0.0"), Format::Text004),
            (Some("application/openmetrics-text;q=0"), Format::Text004),
            (Some("application/openmetrics-text;q=nan"), Format::Text004),
        ] {
            assert_eq!(format(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn accept_encoding() {
        for (header, expected) in [
            (None, false),
            (Some("gzip"), true),
            (Some("deflate, GZip;q=0.5"), true),
            (Some("gzip;q=0"), false),
            (Some("gzip; q=0.0, identity"), false),
            (Some("br"), false),
        ] {
            assert_eq!(accepts_gzip(header), expected, "{header:?}");
        }
    }
}
