//! What a C caller passes: pointers, each behind a type that says what may be done with it.
//!
//! The types are transparent, so a function that takes them has the header's signature. Only a caller can make one; what it
//! promises with it is the header's contract: null, or valid for the access that the function documents.

use std::ffi::{c_char, c_uint};

use simulator::nvml::Code;

/// What a function comes to.
pub type Answer<T = ()> = Result<T, Code>;

/// Longest text that is read from a caller.
const MAX_TEXT: usize = 256;

/// A place for one value, which the caller may also have filled.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Whether there is no place.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// That there is a place.
    pub fn there(self) -> Answer {
        if self.is_null() { Err(Code::INVALID_ARGUMENT) } else { Ok(()) }
    }

    /// Writes the value.
    pub fn put(self, value: T) -> Answer {
        self.there()?;
        // SAFETY: not null, so the caller vouches for room for a T; alignment is not relied upon.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Reads the value.
    pub fn get(self) -> Answer<T> {
        self.there()?;
        // SAFETY: not null, so the caller vouches for a T there; every T used is valid in any bit pattern.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads a struct that begins with its version, once that is the one expected: a struct of another version may be
    /// smaller.
    pub fn versioned(self, version: u32) -> Answer<T> {
        if self.version()? == version { self.get() } else { Err(Code::ARGUMENT_VERSION_MISMATCH) }
    }

    /// The version with which a struct begins.
    pub fn version(self) -> Answer<u32> {
        self.there()?;
        // SAFETY: not null, so the caller vouches for a struct there, which begins with its version.
        Ok(unsafe { self.0.cast::<u32>().read_unaligned() })
    }

    /// The `n`th of several places, whose number the caller has given.
    pub fn nth(self, n: usize) -> Self {
        Self(self.0.wrapping_add(n))
    }

    /// The same place for something that begins alike.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Fills an array by the protocol of two calls: `count` has room for so many, and then says how many there are.
    /// Without enough room nothing is written and the answer is INSUFFICIENT_SIZE.
    pub fn fill(self, count: Out<c_uint>, items: &[T]) -> Answer {
        let room = count.get()? as usize;
        count.put(items.len() as c_uint)?;
        if items.is_empty() {
            return Ok(());
        }
        if room < items.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (n, item) in items.iter().enumerate() {
            self.there()?;
            self.nth(n).put(*item)?;
        }
        Ok(())
    }
}

/// A place for a text, whose length the caller gives beside it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextOut(*mut c_char);

impl TextOut {
    /// Writes the text and a NUL, or nothing where it does not fit into `length` bytes.
    pub fn put(self, length: c_uint, text: &str) -> Answer {
        let place = Out(self.0.cast::<u8>());
        place.there()?;
        if text.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (n, byte) in text.bytes().chain([0]).enumerate() {
            place.nth(n).put(byte)?;
        }
        Ok(())
    }
}

/// A text of the caller's, ended by NUL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct TextIn(*const c_char);

impl TextIn {
    /// Reads it; one that goes on and on, or is not UTF-8, means nothing here.
    pub fn get(self) -> Answer<String> {
        let place = Out(self.0.cast_mut().cast::<u8>());
        let mut text = Vec::new();
        while text.len() < MAX_TEXT {
            match place.nth(text.len()).get().and_then(|byte| place.there().map(|()| byte))? {
                0 => return String::from_utf8(text).map_err(|_| Code::INVALID_ARGUMENT),
                byte => text.push(byte),
            }
        }
        Err(Code::INVALID_ARGUMENT)
    }
}

/// A text as a fixed number of bytes, NULs behind it; cut where it is too long.
pub fn fixed<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (byte, letter) in bytes.iter_mut().zip(text.bytes().take(N - 1)) {
        *byte = letter as c_char;
    }
    bytes
}
