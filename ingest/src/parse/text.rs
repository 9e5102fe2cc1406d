//! A piece of the page that may still hold escapes.

use std::borrow::Cow;
use std::fmt;

/// A text of the page. It stays as written until [`Text::get`] undoes its escapes, so that scanning copies nothing.
///
/// Held as written, without its quotes; where a backslash is in it, with the opening quote, which no text without escapes
/// can begin with. So a text is two words, and labels stay small and are copied in registers.
#[derive(Clone, Copy)]
pub struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// A text without escapes; it does not begin with a quote.
    #[inline]
    pub(super) fn plain(inner: &'a str) -> Self {
        Text(inner)
    }

    /// A text with escapes, its opening quote included, its closing one not.
    pub(super) fn with_escapes(opened: &'a str) -> Self {
        Text(opened)
    }

    /// The text itself: borrowed from the page, copied only where an escape had to be undone. An unknown escape keeps
    /// both of its bytes.
    #[inline]
    pub fn get(self) -> Cow<'a, str> {
        match self.0.strip_prefix('"') {
            None => Cow::Borrowed(self.0),
            Some(escaped) => unescape(escaped, true),
        }
    }

    /// Whether the text is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The text where it has no escapes.
    #[inline]
    pub(super) fn as_plain(self) -> Option<&'a str> {
        (!self.has_escapes()).then_some(self.0)
    }

    #[inline]
    fn has_escapes(self) -> bool {
        self.0.as_bytes().first() == Some(&b'"')
    }
}

impl PartialEq<str> for Text<'_> {
    #[inline]
    fn eq(&self, other: &str) -> bool {
        if self.has_escapes() { self.get() == other } else { self.0 == other }
    }
}

impl PartialEq for Text<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        if other.has_escapes() { *self == *other.get() } else { *self == *other.0 }
    }
}

impl Eq for Text<'_> {}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.get())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// Undoes `\\`, `\n` and, in quoted text, `\"`.
pub(super) fn unescape(text: &str, quotes: bool) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', text.as_bytes()) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut next = Some(first);
    while let Some(n) = next {
        out.push_str(&rest[..n]);
        let after = &rest[n + 1..];
        let (plain, skip) = match after.as_bytes().first() {
            Some(b'\\') => ('\\', 1),
            Some(b'n') => ('\n', 1),
            Some(b'"') if quotes => ('"', 1),
            _ => ('\\', 0),
        };
        out.push(plain);
        rest = &after[skip..];
        next = memchr::memchr(b'\\', rest.as_bytes());
    }
    out.push_str(rest);
    Cow::Owned(out)
}
