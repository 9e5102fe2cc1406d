//! Packed pages, unpacked within a limit.

use flate2::bufread::MultiGzDecoder;
use std::io::{self, Read};

/// Unpacks gzip, of one member or more. None: it is longer than `limit` bytes; no more than that is ever held of it.
///
/// Errors: what is no gzip, or is damaged, or ends too early.
pub fn unpack(packed: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut page = Vec::new();
    MultiGzDecoder::new(packed).take((limit as u64).saturating_add(1)).read_to_end(&mut page)?;
    Ok((page.len() <= limit).then_some(page))
}
