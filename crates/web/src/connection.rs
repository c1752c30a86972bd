//! Serves one connection: TLS handshake, HTTP/1 or HTTP/2, shutdown.

use crate::connection_state::ConnectionState;
use crate::counts::Ended;
use crate::middleware::{Middleware, RequestOrigin};
use crate::monitored_io::{ConnectionMonitor, MonitoredIo};
use crate::serve::Peer;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch::Receiver;
use tokio_rustls::TlsAcceptor;

/// HTTP/2 send buffer per stream in bytes.
const SEND_BYTES: usize = 64 << 10;
/// HTTP/2 receive window in bytes.
const WINDOW_BYTES: u32 = 64 << 10;
/// Content type of a TLS handshake record.
const TLS_HANDSHAKE: u8 = 22;

/// Serves a connection until it ends or the server stops.
pub async fn serve(
    stream: TcpStream,
    peer: Peer,
    middleware: Arc<Middleware>,
    monitor: Arc<ConnectionMonitor>,
    stopped: Receiver<bool>,
) {
    // Without TCP_NODELAY responses are only some milliseconds slower.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let settings = middleware.config.fresh().await;
    let stream = MonitoredIo::new(stream, monitor.clone());
    let counters = middleware.config.counters().clone();
    let Some(tls) = settings.tls.clone() else {
        let origin = RequestOrigin { peer, certificate: false, monitor };
        return http(stream, false, origin, middleware, stopped).await;
    };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(middleware.limits.handshake, handshake(tls, stream)) => shaken,
        () = monitor.evicted.notified() => return counters.ended(Ended::Room),
        () = stop_requested(stopped.clone()) => return,
    };
    let mut stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(client = %peer.0, %error, "no handshake");
            return counters.ended(Ended::Handshake);
        }
        Err(_) => return counters.ended(Ended::HandshakeTime),
    };
    monitor.update(|state, now| *state = ConnectionState::new(now));
    let (socket, state) = stream.get_mut();
    let is_http2 = state.alpn_protocol() == Some(b"h2");
    if is_http2 {
        socket.many_at_once();
    }
    let certificate = settings.certificates_are_verified && state.peer_certificates().is_some();
    http(stream, is_http2, RequestOrigin { peer, certificate, monitor }, middleware, stopped).await;
}

/// Enables TCP keepalive: detects a vanished client within two minutes, also on an idle connection.
fn keep_alive(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    // On failure a vanished client only keeps its slot.
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &60);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &15);
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &4);
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
}

async fn handshake(
    tls: TlsAcceptor,
    mut stream: MonitoredIo,
) -> std::io::Result<tokio_rustls::server::TlsStream<MonitoredIo>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        // Plain HTTP on a TLS port gets an explanatory response.
        let text = "this server speaks HTTPS: write https:// instead of http://\n";
        let answer = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            text.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the client does not speak TLS"));
    }
    tls.accept(stream).await
}

async fn http<S>(stream: S, is_http2: bool, origin: RequestOrigin, middleware: Arc<Middleware>, stopped: Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, monitor, counters) =
        (middleware.limits.clone(), origin.monitor.clone(), middleware.config.counters().clone());
    let peer = origin.peer;
    let origin = Arc::new(origin);
    let service = service_fn(move |request: Request<Incoming>| {
        let (middleware, origin) = (middleware.clone(), origin.clone());
        async move { Ok::<_, Infallible>(middleware.answer(request, &origin).await) }
    });
    let io = TokioIo::new(stream);
    // The connection types of hyper share methods but no trait.
    macro_rules! run {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                why = monitor.over(&limits) => return counters.ended(why),
                () = stop_requested(stopped) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        result = connection.as_mut() => result,
                        why = monitor.over(&limits) => return counters.ended(why),
                    }
                }
            };
            if let Err(error) = result {
                tracing::debug!(client = %peer.0, %error, "connection ended");
            }
        }};
    }
    if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            // Header lists take one or two kilobytes; the HPACK table keeps its default size.
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES);
        run!(builder.serve_connection(io, service));
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // The monitor enforces this limit.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes);
        run!(builder.serve_connection(io, service));
    }
}

/// Resolves when the server stops or is dropped.
pub async fn stop_requested(mut stopped: Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = stopped.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{getsockopt, sockopt};

    #[tokio::test]
    async fn idle_clients_get_keepalive_probes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        keep_alive(&stream);
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), 60);
    }
}
