//! What TLS said on a connection that broke. With TLS 1.3 a server says only after the handshake that it does not take our
//! certificate, and libraries of HTTP/2 pass on the words of such an error at best: it is heard here, below them.

use crate::push::trouble::of_tls;
use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tower_service::Service;

/// The last error of TLS on any connection of a connector.
#[derive(Clone, Default)]
pub(crate) struct Overheard(Arc<Mutex<Option<rustls::Error>>>);

impl Overheard {
    /// What came since somebody asked last.
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

/// Connects in plain or by TLS, as the URL says.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: HttpsConnector<HttpConnector>,
    /// What is heard on its connections.
    pub(crate) overheard: Overheard,
}

impl From<HttpsConnector<HttpConnector>> for Connector {
    fn from(inner: HttpsConnector<HttpConnector>) -> Connector {
        Connector { inner, overheard: Overheard::default() }
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
        let (connecting, overheard) = (self.inner.call(to), self.overheard.clone());
        Box::pin(async move { Ok(Stream { inner: connecting.await?, overheard }) })
    }
}

/// A connection that is listened to.
pub(crate) struct Stream {
    inner: <HttpsConnector<HttpConnector> as Service<Uri>>::Response,
    overheard: Overheard,
}

impl Stream {
    /// Notes why something was not written. A server that hangs up has often said why, which waits to be read, and nobody reads
    /// after a failed write.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &done {
            self.overheard.note(error);
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.inner).poll_read(cx, buffer.unfilled()) {
                self.overheard.note(&error);
            }
        }
        done
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.inner).poll_read(cx, to);
        if let Poll::Ready(Err(error)) = &done {
            self.overheard.note(error);
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
