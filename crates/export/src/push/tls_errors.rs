//! Records TLS errors below HTTP. With TLS 1.3 a server refuses a client certificate after the handshake (RFC 8446, 4.4.2.4),
//! and HTTP/2 libraries report only a broken connection.

use crate::push::connection_error::of_tls;
use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tower_service::Service;

/// The last TLS error on any connection of a connector.
#[derive(Clone, Default)]
pub(crate) struct TlsErrorTap(Arc<Mutex<Option<rustls::Error>>>);

impl TlsErrorTap {
    /// Takes the error out.
    pub(crate) fn take(&self) -> Option<rustls::Error> {
        self.lock().take()
    }

    fn note(&self, error: &io::Error) {
        if let Some(error) = of_tls(error) {
            *self.lock() = Some(error.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<rustls::Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects with or without TLS, by the scheme of the URL.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: HttpsConnector<HttpConnector>,
    /// TLS errors of its connections.
    pub(crate) tls_errors: TlsErrorTap,
}

impl From<HttpsConnector<HttpConnector>> for Connector {
    fn from(inner: HttpsConnector<HttpConnector>) -> Connector {
        Connector { inner, tls_errors: TlsErrorTap::default() }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = <HttpsConnector<HttpConnector> as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connecting, tls_errors) = (self.inner.call(to), self.tls_errors.clone());
        Box::pin(async move { Ok(Stream { inner: connecting.await?, tls_errors }) })
    }
}

/// A connection whose errors are recorded.
pub(crate) struct Stream {
    inner: <HttpsConnector<HttpConnector> as Service<Uri>>::Response,
    tls_errors: TlsErrorTap,
}

impl Stream {
    /// Records the error of a write, and the alert that the server may have sent before it closed: hyper does not read after
    /// a failed write.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &done {
            self.tls_errors.note(error);
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.inner).poll_read(cx, buffer.unfilled()) {
                self.tls_errors.note(&error);
            }
        }
        done
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_read(cx, to);
        if let Poll::Ready(Err(error)) = &done {
            self.tls_errors.note(error);
        }
        done
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.wrote(cx, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_flush(cx);
        self.wrote(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.wrote(cx, done)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}
