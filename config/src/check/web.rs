//! `web-config.yml`. What it means is what `exporter-toolkit` of Prometheus says, so that one file serves all exporters.

use crate::diag::Diagnostic;
use crate::fields::{self, Fields, Keys};
use crate::model::{ClientAuth, Curve, Location, Pem, RateLimit, Secret, Tls, TlsVersion, User, Web};
use crate::names::suggestion;
use crate::quantity;
use crate::raw::{Kind, Node};
use crate::report::{Problem, Report};
use kstrobe_ebpf::diag::did_you_mean;

const WEB: Keys = Keys {
    of: "the web configuration",
    known: &["tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"],
    later: &[],
};
const TLS: Keys = Keys {
    of: "`tls_server_config`",
    known: &[
        "cert_file",
        "key_file",
        "cert",
        "key",
        "client_ca_file",
        "client_ca",
        "client_auth_type",
        "client_allowed_sans",
        "min_version",
        "max_version",
        "cipher_suites",
        "curve_preferences",
        "prefer_server_cipher_suites",
    ],
    later: &[],
};
const HTTP: Keys = Keys { of: "`http_server_config`", known: &["http2", "headers"], later: &[] };
const HEADERS: Keys = Keys {
    of: "`headers`",
    known: &[
        "Content-Security-Policy",
        "X-Frame-Options",
        "X-Content-Type-Options",
        "X-XSS-Protection",
        "Strict-Transport-Security",
    ],
    later: &[],
};
const RATE: Keys = Keys { of: "`rate_limit`", known: &["interval", "burst"], later: &[] };

/// Any of these switches TLS on.
const SWITCHES: [&str; 7] = ["cert_file", "cert", "key_file", "key", "client_ca_file", "client_ca", "client_auth_type"];

const CLIENT_AUTH: [(&str, ClientAuth); 6] = [
    ("NoClientCert", ClientAuth::None),
    ("RequestClientCert", ClientAuth::Request),
    ("RequireAnyClientCert", ClientAuth::RequireAny),
    ("VerifyClientCertIfGiven", ClientAuth::VerifyIfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::RequireAndVerify),
    // An old name that files still have.
    ("RequireClientCert", ClientAuth::RequireAny),
];
const VERSIONS: [&str; 4] = ["TLS10", "TLS11", "TLS12", "TLS13"];
const CURVES: [(&str, Option<Curve>); 4] = [
    ("CurveP256", Some(Curve::P256)),
    ("CurveP384", Some(Curve::P384)),
    ("CurveP521", None),
    ("X25519", Some(Curve::X25519)),
];
/// Cipher suites of TLS 1.2 that there are.
const SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Those of TLS 1.3: always all of them, whatever the list says.
const SUITES_13: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Those that other exporters have and we do not.
const SUITES_OLD: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
];
/// Above this cost (a second or more of one CPU) each wrong password is expensive.
const HIGH_COST: u32 = 14;

impl Default for Web {
    fn default() -> Self {
        Web { tls: None, http2: true, headers: Vec::new(), users: Vec::new(), rate_limit: None }
    }
}

/// The configuration, with what is absent or wrong at its default.
pub(crate) fn web(node: &Node, report: &mut Report) -> Web {
    let mut web = Web::default();
    if matches!(node.kind, Kind::Nothing) {
        return web;
    }
    let Some(fields) = Fields::read(node, &node.at, &WEB, report) else { return web };
    web.tls = part(&fields, "tls_server_config", &TLS, report).and_then(|fields| tls(&fields, report));
    if let Some(fields) = part(&fields, "http_server_config", &HTTP, report) {
        web.http2 = flag(&fields, "http2", report);
        web.headers = part(&fields, "headers", &HEADERS, report).map(|f| headers(&f, report)).unwrap_or_default();
    }
    web.users = given(&fields, "basic_auth_users").map(|node| users(node, report)).unwrap_or_default();
    web.rate_limit = part(&fields, "rate_limit", &RATE, report).and_then(|fields| rate_limit(&fields, report));
    web
}

/// The value of `key`, unless it is empty: that is the same as none.
fn given<'a>(fields: &Fields<'a>, key: &str) -> Option<&'a Node> {
    fields.get(key).filter(|node| match &node.kind {
        Kind::Nothing => false,
        Kind::Scalar { text, .. } => !text.trim().is_empty(),
        _ => true,
    })
}

fn part<'a>(fields: &Fields<'a>, key: &str, keys: &Keys, report: &mut Report) -> Option<Fields<'a>> {
    let entry = fields.entry(key)?;
    given(fields, key)?;
    Fields::read(&entry.value, &entry.key.at, keys, report)
}

fn text(fields: &Fields, key: &str, report: &mut Report) -> Option<String> {
    fields::text(given(fields, key)?, "text", report).map(|text| text.value)
}

/// True unless it says false, in one of the words that YAML 1.1 had for it.
fn flag(fields: &Fields, key: &str, report: &mut Report) -> bool {
    let Some(node) = given(fields, key) else { return true };
    match &node.kind {
        Kind::Scalar { text, plain: true } if ["yes", "on", "y"].contains(&&*text.to_ascii_lowercase()) => true,
        Kind::Scalar { text, plain: true } if ["no", "off", "n"].contains(&&*text.to_ascii_lowercase()) => false,
        Kind::Scalar { text, plain: true } if ["True", "TRUE"].contains(&&**text) => true,
        Kind::Scalar { text, plain: true } if ["False", "FALSE"].contains(&&**text) => false,
        _ => fields::boolean(node, report).unwrap_or(true),
    }
}

fn tls(fields: &Fields, report: &mut Report) -> Option<Tls> {
    let before = report.errors();
    let client_auth = given(fields, "client_auth_type").and_then(|node| client_auth(node, report));
    let client_auth = client_auth.unwrap_or(ClientAuth::None);
    let (min_version, max_version) = versions(fields, report);
    let tls = Tls {
        cert: pem(fields, "cert_file", "cert", report).unwrap_or(Pem::File(String::new())),
        key: pem(fields, "key_file", "key", report).unwrap_or(Pem::File(String::new())),
        client_auth,
        client_ca: pem(fields, "client_ca_file", "client_ca", report),
        client_allowed_sans: given(fields, "client_allowed_sans").map(|node| texts(node, report)),
        min_version,
        max_version,
        cipher_suites: given(fields, "cipher_suites").and_then(|node| suites(node, max_version, report)),
        curves: given(fields, "curve_preferences").and_then(|node| curves(node, report)),
        prefer_server_cipher_suites: flag(fields, "prefer_server_cipher_suites", report),
    };
    if !SWITCHES.iter().any(|key| given(fields, key).is_some()) {
        let diagnostic = Diagnostic::warning(fields.at, "`tls_server_config` names no certificate: there is no TLS");
        report.push(diagnostic.hint("give it `cert_file` and `key_file`, or remove it"));
        return None;
    }
    for (file, text) in [("cert_file", "cert"), ("key_file", "key")] {
        let meant = fields.meant(file) || fields.meant(text);
        if given(fields, file).is_none() && given(fields, text).is_none() && !meant {
            report.push(Diagnostic::error(fields.at, format!("`tls_server_config` needs `{file}` or `{text}`")));
        }
    }
    client_rules(fields, &tls, report);
    (report.errors() == before).then_some(tls)
}

/// What only makes sense together.
fn client_rules(fields: &Fields, tls: &Tls, report: &mut Report) {
    let at = |key: &str| fields.entry(key).map_or(fields.at, |entry| &entry.key.at);
    let verifies = matches!(tls.client_auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
    if tls.client_ca.is_some() && tls.client_auth == ClientAuth::None && !fields.meant("client_auth_type") {
        let ca = if given(fields, "client_ca_file").is_some() { "client_ca_file" } else { "client_ca" };
        let diagnostic =
            Diagnostic::error(at(ca), format!("`{ca}` has no effect: clients are asked for no certificate"));
        report.push(diagnostic.hint("add `client_auth_type: RequireAndVerifyClientCert`"));
    }
    if verifies && tls.client_ca.is_none() && !fields.meant("client_ca_file") {
        let diagnostic = Diagnostic::error(at("client_auth_type"), "this needs the authority that signs for clients");
        // Other exporters fall back to the machine's public authorities, who sign for anybody.
        report.push(diagnostic.hint("add `client_ca_file`"));
    }
    let needs = matches!(tls.client_auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    if tls.client_allowed_sans.is_some() && !needs {
        let message = "`client_allowed_sans` has no effect where a client may come without a certificate";
        let diagnostic = Diagnostic::error(at("client_allowed_sans"), message);
        report.push(diagnostic.hint("use `client_auth_type: RequireAndVerifyClientCert`"));
    }
    if tls.client_auth == ClientAuth::RequireAny {
        let message = "any certificate will do, also one that the client made itself";
        let diagnostic = Diagnostic::warning(at("client_auth_type"), message);
        report.push(diagnostic.hint("use `RequireAndVerifyClientCert` with `client_ca_file`"));
    }
}

fn pem(fields: &Fields, file: &str, inline: &str, report: &mut Report) -> Option<Pem> {
    let path = text(fields, file, report);
    let inlined = text(fields, inline, report);
    if let (Some(_), Some(_), Some(entry)) = (&path, &inlined, fields.entry(inline)) {
        let message = format!("`{inline}` is not used: there is `{file}` too");
        report.push(Diagnostic::warning(&entry.key.at, message).hint("remove one of them"));
    }
    path.map(Pem::File).or_else(|| inlined.map(|text| Pem::Text(Secret(text))))
}

fn client_auth(node: &Node, report: &mut Report) -> Option<ClientAuth> {
    let read = |text: &str| {
        let found = CLIENT_AUTH.iter().find(|(name, _)| *name == text).map(|(_, auth)| *auth);
        found.ok_or_else(|| {
            let names = CLIENT_AUTH.map(|(name, _)| name);
            Problem::new(format!("`{text}` is no kind of client authentication")).hint(suggestion(text, &names[..5]))
        })
    };
    fields::parsed(node, "a kind of client authentication", report, read).map(|auth| auth.value)
}

fn versions(fields: &Fields, report: &mut Report) -> (TlsVersion, TlsVersion) {
    let mut version = |key: &str, default: TlsVersion| {
        let Some(node) = given(fields, key) else { return default };
        match fields::choice(node, "a version of TLS", &VERSIONS, &[], report) {
            Some("TLS12") => TlsVersion::Tls12,
            Some("TLS13") => TlsVersion::Tls13,
            Some(_) if key == "min_version" => {
                let diagnostic = Diagnostic::warning(&node.at, "versions before TLS 1.2 are broken and not there");
                report.push(diagnostic.hint("it is read as TLS12"));
                TlsVersion::Tls12
            }
            Some(_) => {
                let diagnostic = Diagnostic::error(&node.at, "versions before TLS 1.2 are broken and not there");
                report.push(diagnostic.hint("use `TLS12` or `TLS13`"));
                default
            }
            None => default,
        }
    };
    let min = version("min_version", TlsVersion::Tls12);
    let max = version("max_version", TlsVersion::Tls13);
    if min > max {
        let at = fields.entry("max_version").map_or(fields.at, |entry| &entry.value.at);
        report.push(Diagnostic::error(at, "`max_version` is below `min_version`: no client could connect"));
    }
    (min, max)
}

fn items<'a>(node: &'a Node, what: &str, report: &mut Report) -> &'a [Node] {
    fields::list(node, what, report).unwrap_or_default()
}

fn texts(node: &Node, report: &mut Report) -> Vec<String> {
    let items = items(node, "`client_allowed_sans`", report).iter();
    items.filter_map(|item| fields::text(item, "a name, address or URI", report)).map(|text| text.value).collect()
}

fn suites(node: &Node, max_version: TlsVersion, report: &mut Report) -> Option<Vec<&'static str>> {
    let names: Vec<&'static str> = SUITES.into_iter().chain(SUITES_13).chain(SUITES_OLD).collect();
    let listed = items(node, "`cipher_suites`", report);
    if listed.is_empty() {
        return None;
    }
    let mut there = Vec::new();
    for item in listed {
        let name = fields::parsed(item, "the name of a cipher suite", report, |text| {
            names.iter().find(|name| **name == text).copied().ok_or_else(|| {
                let near = did_you_mean(text, names.iter().copied());
                let hint = near.map_or_else(
                    || format!("there are {}", SUITES.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                Problem::new(format!("there is no safe cipher suite `{text}`")).hint(hint)
            })
        });
        match name.map(|name| name.value) {
            Some(name) if SUITES.contains(&name) => there.push(name),
            Some(name) if SUITES_OLD.contains(&name) => {
                let message = format!("`{name}` is not there: suites with CBC are weak");
                report.push(Diagnostic::warning(&item.at, message).hint("it is left out"));
            }
            _ => {}
        }
    }
    if there.is_empty() && max_version == TlsVersion::Tls12 {
        let diagnostic =
            Diagnostic::error(&node.at, "none of these suites is there for TLS 1.2: no client could connect");
        report.push(diagnostic.hint("add one with GCM or CHACHA20, or allow TLS13"));
    }
    Some(there)
}

fn curves(node: &Node, report: &mut Report) -> Option<Vec<Curve>> {
    let names = CURVES.map(|(name, _)| name);
    let mut there = Vec::new();
    for item in items(node, "`curve_preferences`", report) {
        let Some(name) = fields::choice(item, "a curve", &names, &[], report) else { continue };
        match CURVES.iter().find(|(known, _)| *known == name).and_then(|(_, curve)| *curve) {
            Some(curve) => there.push(curve),
            None => {
                let diagnostic = Diagnostic::warning(&item.at, format!("`{name}` is not there"));
                report.push(diagnostic.hint("it is left out"));
            }
        }
    }
    let Kind::Sequence(listed) = &node.kind else { return None };
    if there.is_empty() && !listed.is_empty() {
        report.push(Diagnostic::error(&node.at, "none of these curves is there: no client could connect"));
    }
    (!there.is_empty()).then_some(there)
}

fn headers(fields: &Fields, report: &mut Report) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    for name in HEADERS.known {
        let Some(node) = given(fields, name) else { continue };
        let value = fields::parsed(node, "the text of a header", report, |text| header(name, text));
        found.extend(value.map(|value| (*name, value.value)));
    }
    found
}

fn header(name: &str, text: &str) -> Result<String, Problem> {
    let allowed: &[&str] = match name {
        "X-Content-Type-Options" => &["nosniff"],
        "X-Frame-Options" => &["deny", "sameorigin"],
        _ => &[],
    };
    if !allowed.is_empty() && !allowed.contains(&text) {
        return Err(Problem::new(format!("`{text}` is no value of `{name}`")).hint(suggestion(text, allowed)));
    }
    if !text.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)) {
        return Err(Problem::new("a header is one line of plain ASCII text"));
    }
    Ok(text.trim().to_owned())
}

fn users(node: &Node, report: &mut Report) -> Vec<User> {
    let mut users = Vec::new();
    for entry in fields::mapping(node, "`basic_auth_users`", report).unwrap_or_default() {
        let name = &entry.key.value;
        if name.contains(':') || name.chars().any(char::is_control) {
            let message = "the name of a user has no `:` and no control characters in it";
            report.push(Diagnostic::error(&entry.key.at, message));
            continue;
        }
        // Messages blame the name: the value is a secret.
        match &entry.value.kind {
            Kind::Scalar { text, .. } => match bcrypt_cost(text) {
                Some(cost) => {
                    if cost > HIGH_COST {
                        let message = format!("bcrypt at cost {cost} takes seconds for each wrong password");
                        report.push(Diagnostic::warning(&entry.key.at, message).hint("10 to 12 is usual"));
                    }
                    users.push(User { name: name.clone(), hash: Secret(text.clone()) });
                }
                None => not_bcrypt(&entry.key.at, name, report),
            },
            Kind::Broken => {}
            _ => not_bcrypt(&entry.key.at, name, report),
        }
    }
    users
}

fn not_bcrypt(at: &Location, name: &str, report: &mut Report) {
    let diagnostic = Diagnostic::error(at, format!("what stands for user `{name}` is not bcrypt's text of a password"));
    report.push(diagnostic.hint("`htpasswd -nBC 10 NAME` prints one; it begins with `$2y$`"));
}

/// The cost in `$2y$10$` and 53 more characters: binary logarithm of the rounds, 4 to 31.
fn bcrypt_cost(text: &str) -> Option<u32> {
    let rest = ["$2a$", "$2b$", "$2x$", "$2y$"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let (cost, rest) = rest.split_once('$')?;
    let digits = cost.len() == 2 && cost.bytes().all(|b| b.is_ascii_digit());
    let tail = rest.len() == 53 && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/'));
    let cost = cost.parse().ok().filter(|_| digits && tail)?;
    (4..=31).contains(&cost).then_some(cost)
}

fn rate_limit(fields: &Fields, report: &mut Report) -> Option<RateLimit> {
    let interval = given(fields, "interval")
        .and_then(|node| fields::parsed(node, "a duration such as `1s`", report, interval_ns))
        .map_or(0, |interval| interval.value);
    let burst = given(fields, "burst").and_then(|node| fields::integer(node, 0..=1_000_000, report)).unwrap_or(0);
    if interval > 0 && burst == 0 {
        let diagnostic = Diagnostic::error(fields.at, "a `rate_limit` without `burst` lets no request through");
        report.push(diagnostic.hint("set `burst` to the requests that may come at once, or `interval: 0`"));
        return None;
    }
    (interval > 0).then_some(RateLimit { interval_ns: interval, burst: burst as u32 })
}

/// As Go writes durations: `1s`, `1m30s`, `1.5s`; a bare number is nanoseconds.
fn interval_ns(text: &str) -> Result<u64, Problem> {
    let wrong = || Problem::new(format!("`{text}` is no duration")).hint("write for example `1s` or `500ms`");
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return quantity::integer(text);
    }
    let mut total_ns = 0f64;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (value, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return Err(wrong()),
        };
        total_ns += value.parse::<f64>().map_err(|_| wrong())? * scale;
        rest = after;
    }
    if total_ns > 1e18 {
        return Err(Problem::new(format!("{text} is too long")));
    }
    Ok(total_ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_as_go_writes_them() {
        for (text, ns) in [
            ("0", 0),
            ("1000000000", 1_000_000_000),
            ("0s", 0),
            ("1s", 1_000_000_000),
            ("1.5s", 1_500_000_000),
            ("1m30s", 90_000_000_000),
            (".5ms", 500_000),
            ("1µs", 1_000),
        ] {
            assert_eq!(interval_ns(text), Ok(ns), "{text}");
        }
        for text in ["s", "-1s", "1x", "1 s", "1..5s", ".s", "1s1", "99999999999h", "99999999999999999999"] {
            assert!(interval_ns(text).is_err(), "{text}");
        }
    }

    #[test]
    fn texts_of_bcrypt() {
        let tail = "X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";
        assert_eq!(bcrypt_cost(&format!("$2y$10${tail}")), Some(10));
        assert_eq!(bcrypt_cost(&format!("$2b$04${tail}")), Some(4));
        for wrong in ["$2y$03$", "$2y$32$", "$2y$+9$", "$2y$9$", "$1$10$", "$2c$10$", "2y$10$", "$2y$10"] {
            assert_eq!(bcrypt_cost(&format!("{wrong}{tail}")), None, "{wrong}");
        }
        assert_eq!(bcrypt_cost("$2y$10$short"), None);
        assert_eq!(bcrypt_cost(&format!("$2y$10${}é", &tail[..51])), None);
    }

    #[test]
    fn secrets_are_not_shown() {
        let user = User { name: "a".into(), hash: Secret("hidden".into()) };
        assert!(!format!("{user:?}").contains("hidden"));
    }
}
