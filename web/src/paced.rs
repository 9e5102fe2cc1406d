//! A connection whose peer must take what is written to it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use crate::metrics::Counter;

/// Bytes that a peer must take in each time-out while more waits for it; less is as good as nothing.
const LEAST_PROGRESS: usize = 16 * 1024;

/// Writes fail once the peer has stood still for `timeout`. Reads have other deadlines.
pub(crate) struct Paced<S> {
    stream: S,
    timeout: Duration,
    /// Runs since a write first had to wait.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Written since then.
    written: usize,
    too_slow: Counter,
    failed: bool,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, timeout: Duration, too_slow: Counter) -> Self {
        Self { stream, timeout, waiting: None, written: 0, too_slow, failed: false }
    }

    /// What `polled` means for the deadline; a write that went through says how much.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if self.failed {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        match polled {
            Poll::Ready(done) => {
                if let Ok(done) = &done {
                    self.written = self.written.saturating_add(bytes(done));
                    if self.written >= LEAST_PROGRESS {
                        self.rest();
                    }
                }
                Poll::Ready(done)
            }
            Poll::Pending => {
                if self.waiting.is_none() {
                    self.written = 0; // what went through before does not count for this wait
                }
                let timeout = self.timeout;
                let sleep = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(sleep.as_mut().poll(cx));
                self.failed = true;
                self.too_slow.inc();
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
            }
        }
    }

    /// Nothing waits, or enough went through.
    fn rest(&mut self) {
        self.waiting = None;
        self.written = 0;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, polled, |bytes| *bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, polled, |bytes| *bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        // Asked for once all was written: nothing waits for the peer.
        if polled.is_ready() {
            self.rest();
        }
        self.judge(cx, polled, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, polled, |()| 0)
    }
}
