//! What a capture says, as JSON: threads over time, and the reports of `kstrobe report`.

use super::{Denial, denial, id, turn, with_rules};
use crate::capture::audit;
use crate::capture::error::Error;
use crate::capture::report::{self, Data};
use crate::capture::store::Id;
use crate::http::access::Asker;
use crate::http::routes::Shared;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use kstrobe_ftrace::dat;
use kstrobe_ftrace::report::{Asked, Limits, Shown, Threads, of_trace, system_call_names, threads};
use serde::Serialize;
use std::sync::Arc;

type Pairs = Query<Vec<(String, String)>>;

/// What is wrong with the query of a timeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum QueryError {
    #[error("`{name}` is `{value}`: it is a number of nanoseconds from the beginning of the capture")]
    Time { name: String, value: String },
    #[error("there is no option `{0}`: they are from, to and find")]
    Option(String),
}

/// `GET /api/v1/captures/{id}/timeline?from=NS&to=NS&find=TEXT`
pub(super) async fn timeline(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    Path(text): Path<String>,
    Query(options): Pairs,
) -> Response {
    let shown = match shown(&options) {
        Ok(shown) => shown,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    answer(shared, asker, "timeline", text, move |bytes| threads_of(bytes, &shown)).await
}

/// `GET /api/v1/captures/{id}/report`
pub(super) async fn report(
    State(shared): State<Arc<Shared>>,
    Extension(Asker(asker)): Extension<Asker>,
    Path(text): Path<String>,
) -> Response {
    answer(shared, asker, "report", text, reports_of).await
}

async fn answer<T: Serialize>(
    shared: Arc<Shared>,
    asker: String,
    what: &'static str,
    text: String,
    make: impl FnOnce(&[u8]) -> Result<T, Error> + Send + 'static,
) -> Response {
    let turn = match turn(&shared) {
        Ok(turn) => turn,
        Err(busy) => return busy.into_response(),
    };
    with_rules(shared, move |rules| {
        let _turn = turn;
        let id: Id = id(&text)?;
        let made = rules.service().read(&id, make);
        audit(&asker, what, &text, if made.is_ok() { "sent" } else { "refused" });
        let made = made.map_err(|error| -> Denial { denial(error, &id) })?;
        Ok(([(header::CACHE_CONTROL, "no-store")], Json(made)).into_response())
    })
    .await
}

fn shown(options: &[(String, String)]) -> Result<Shown, QueryError> {
    let mut shown = Shown::default();
    for (name, value) in options {
        let time = || value.parse().map_err(|_| QueryError::Time { name: name.clone(), value: value.clone() });
        match name.as_str() {
            "from" => shown.from_ns = time()?,
            "to" => shown.to_ns = Some(time()?),
            "find" => shown.find.clone_from(value),
            _ => return Err(QueryError::Option(name.clone())),
        }
    }
    Ok(shown)
}

fn threads_of(bytes: &[u8], shown: &Shown) -> Result<Threads, Error> {
    let trace = dat::read(bytes)?.trace;
    let names = system_call_names(&trace.about.uname);
    Ok(threads(|| of_trace(&trace), shown, Limits::default(), names))
}

fn reports_of(bytes: &[u8]) -> Result<Data, Error> {
    let capture = report::capture(bytes)?;
    Ok(report::all(&capture, &Asked::default(), &[]).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_a_range_and_a_name() {
        let parse = |pairs: &[(&str, &str)]| {
            shown(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>())
        };
        assert_eq!(parse(&[]).unwrap(), Shown::default());
        let all = parse(&[("from", "5"), ("to", "7"), ("find", "sh")]).unwrap();
        assert_eq!(all, Shown { from_ns: 5, to_ns: Some(7), find: "sh".into() });
        let wrong = parse(&[("from", "1s")]).unwrap_err().to_string();
        assert!(wrong.starts_with("`from` is `1s`"), "{wrong}");
        assert!(parse(&[("step", "1")]).unwrap_err().to_string().contains("`step`"));
    }
}
