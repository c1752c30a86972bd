//! One connection: its handshake, its protocol, its end.

use crate::counts::Ended;
use crate::gate::{From, Gate};
use crate::pace::Pace;
use crate::serve::Peer;
use crate::watched::{Watch, Watched};
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

/// Bytes of an answer over HTTP/2 that wait for the client.
const SEND_BYTES: usize = 64 << 10;
/// Bytes that a client may send before it is told that they were taken.
const WINDOW_BYTES: u32 = 64 << 10;
/// The first byte of a handshake of TLS.
const TLS_HANDSHAKE: u8 = 22;

/// Serves a connection to its end, which may be that of the server.
pub async fn serve(stream: TcpStream, peer: Peer, gate: Arc<Gate>, watch: Arc<Watch>, stopped: Receiver<bool>) {
    // A failure costs some milliseconds for each answer and nothing else.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let settings = gate.source.fresh().await;
    let stream = Watched::new(stream, watch.clone());
    let counters = gate.source.counters().clone();
    let Some(tls) = settings.tls.clone() else {
        let from = From { peer, certificate: false, watch };
        return http(stream, false, from, gate, stopped).await;
    };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(gate.limits.handshake, handshake(tls, stream)) => shaken,
        () = watch.unwanted.notified() => return counters.ended(Ended::Room),
        () = asked(stopped.clone()) => return,
    };
    let mut stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(client = %peer.0, %error, "no handshake");
            return counters.ended(Ended::Handshake);
        }
        Err(_) => return counters.ended(Ended::HandshakeTime),
    };
    watch.tell(|pace, now| *pace = Pace::new(now));
    let (socket, state) = stream.get_mut();
    let is_http2 = state.alpn_protocol() == Some(b"h2");
    if is_http2 {
        socket.many_at_once();
    }
    let certificate = settings.certificates_are_verified && state.peer_certificates().is_some();
    http(stream, is_http2, From { peer, certificate, watch }, gate, stopped).await;
}

/// A client that vanishes without a word is noticed after two minutes, also while there is nothing to send it.
fn keep_alive(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};
    // Without it such a client keeps its place, as it would have.
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &60);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &15);
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &4);
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
}

async fn handshake(tls: TlsAcceptor, mut stream: Watched) -> std::io::Result<tokio_rustls::server::TlsStream<Watched>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != TLS_HANDSHAKE {
        // Who forgot the `s` of `https` is told so.
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

async fn http<S>(stream: S, is_http2: bool, from: From, gate: Arc<Gate>, stopped: Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, watch, counters) = (gate.limits.clone(), from.watch.clone(), gate.source.counters().clone());
    let peer = from.peer;
    let from = Arc::new(from);
    let service = service_fn(move |request: Request<Incoming>| {
        let (gate, from) = (gate.clone(), from.clone());
        async move { Ok::<_, Infallible>(gate.answer(request, &from).await) }
    });
    let io = TokioIo::new(stream);
    // Both kinds of connection have the same verbs and no trait in common.
    macro_rules! run {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            let result = tokio::select! {
                result = connection.as_mut() => result,
                why = watch.over(&limits) => return counters.ended(why),
                () = asked(stopped) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        result = connection.as_mut() => result,
                        why = watch.over(&limits) => return counters.ended(why),
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
            // Header lists are a kilobyte or two; what a peer may keep of them between requests is the table's default.
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES);
        run!(builder.serve_connection(io, service));
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // The watch has it.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes);
        run!(builder.serve_connection(io, service));
    }
}

/// Done when the server is to stop, or is gone.
pub async fn asked(mut stopped: Receiver<bool>) {
    // An error means that nobody is left who could ask.
    let _ = stopped.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{getsockopt, sockopt};

    #[tokio::test]
    async fn a_client_that_says_nothing_is_asked_whether_it_is_there() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        keep_alive(&stream);
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), 60);
    }
}
