//! Protobuf's wire format, as much of it as event files and the records of W&B need: written by hand, and read field by field.

/// Appends an integer of any length.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends an integer field.
pub(super) fn int(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

/// Appends a field of bytes or text.
pub(super) fn string(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Appends a field that is a message, which `fill` writes.
pub(super) fn message(out: &mut Vec<u8>, field: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    fill(&mut inner);
    string(out, field, &inner);
}

/// The value of a field that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Int(u64),
    /// A message, text or bytes.
    Bytes(&'a [u8]),
    /// Eight or four bytes, which nobody here asks for.
    Fixed,
}

/// Reads the fields of a message in their order; ends at what is no protobuf.
pub(super) fn fields(mut bytes: &[u8]) -> impl Iterator<Item = (u64, Wire<'_>)> {
    std::iter::from_fn(move || {
        let tag = read_varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Int(read_varint(&mut bytes)?),
            2 => {
                let len = usize::try_from(read_varint(&mut bytes)?).ok()?;
                Wire::Bytes(take(&mut bytes, len)?)
            }
            1 => take(&mut bytes, 8).map(|_| Wire::Fixed)?,
            5 => take(&mut bytes, 4).map(|_| Wire::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, value))
    })
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        int(&mut bytes, 1, 300);
        message(&mut bytes, 200, |inner| string(inner, 16, b"x"));
        bytes.extend([2 << 3 | 5, 0, 0, 0, 0]);
        let read: Vec<_> = fields(&bytes).collect();
        assert_eq!(read, [(1, Wire::Int(300)), (200, Wire::Bytes(&[0x82, 1, 1, b'x'])), (2, Wire::Fixed)]);
        for cut in 0..bytes.len() {
            assert!(fields(&bytes[..cut]).count() < 3);
        }
    }
}
