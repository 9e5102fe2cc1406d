//! Names of a certificate (subject alternative names): host names, e-mail addresses, URIs and IP addresses, as text.
//!
//! A certificate is DER: nested tag, length, value. Only the way to the one extension is read; nothing is copied but the names.

use std::net::IpAddr;

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const EXTENSIONS: u8 = 0xa3; // [3] of the certificate's body
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The names of `certificate`, none of them where it has none; nothing where it is no certificate.
pub(super) fn names(certificate: &[u8]) -> Option<Vec<String>> {
    let (SEQUENCE, whole, _) = element(certificate)? else { return None };
    let (SEQUENCE, body, _) = element(whole)? else { return None };
    let mut names = Vec::new();
    for part in elements(body) {
        let (EXTENSIONS, wrapped) = part? else { continue };
        let (SEQUENCE, extensions, _) = element(wrapped)? else { return None };
        for extension in elements(extensions) {
            let (SEQUENCE, extension) = extension? else { return None };
            let (OBJECT_ID, id, rest) = element(extension)? else { return None };
            if id != SUBJECT_ALT_NAME {
                continue;
            }
            // A flag `critical` may be before the value.
            let value = elements(rest).find_map(|part| part.filter(|(tag, _)| *tag == OCTETS))?.1;
            let (SEQUENCE, list, _) = element(value)? else { return None };
            for name in elements(list) {
                let (tag, bytes) = name?;
                match tag {
                    EMAIL | DNS | URI => names.push(std::str::from_utf8(bytes).ok()?.to_owned()),
                    IP => names.push(address(bytes)?.to_canonical().to_string()),
                    _ => {}
                }
            }
        }
    }
    Some(names)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Tag, value and what follows of the first element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // Longer than four bytes of length is no certificate.
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((tag, value, rest))
}

/// The elements one after the other; `None` as the last one where the rest is no element.
fn elements(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u8, &[u8])>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let Some((tag, value, rest)) = element(bytes) else {
            bytes = &[];
            return Some(None);
        };
        bytes = rest;
        Some(Some((tag, value)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::names;

    #[test]
    fn every_kind_of_name_is_read_and_no_bytes_panic() {
        let mut params = CertificateParams::new(vec!["prometheus.example.org".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::IpAddress("10.0.0.5".parse().unwrap()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
            SanType::Rfc822Name("ops@example.org".try_into().unwrap()),
            SanType::URI("spiffe://example.org/prometheus".try_into().unwrap()),
        ]);
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let expected =
            ["prometheus.example.org", "10.0.0.5", "2001:db8::1", "ops@example.org", "spiffe://example.org/prometheus"];
        assert_eq!(names(&der).unwrap(), expected);
        let nameless = CertificateParams::new(vec![]).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(names(nameless.der()).unwrap(), Vec::<String>::new());
        for end in 0..der.len() {
            assert!(names(&der[..end]).is_none(), "cut at {end}");
            let mut turned = der.clone();
            turned[end] ^= 0xff;
            let _ = names(&turned);
        }
    }
}
