//! Pictures with several frames in formats that are not read as clips, so that none becomes a clip of one frame unnoticed.

/// Checks that a picture that stands for a clip has one frame.
///
/// # Errors
/// The reason: the bytes are an animated WebP or PNG file, of which the first frame alone would be read.
pub fn expect_still(bytes: &[u8]) -> Result<(), String> {
    let kind = match () {
        () if is_animated_webp(bytes) => "WebP",
        () if is_animated_png(bytes) => "PNG",
        () => return Ok(()),
    };
    Err(format!(
        "is an animated {kind} file, and of animations only GIF is read as a clip: convert it to GIF or MP4, or save its \
         first frame as a still picture"
    ))
}

/// Returns whether a WebP file says so in its extended header.
fn is_animated_webp(bytes: &[u8]) -> bool {
    const ANIMATION: u8 = 2;
    bytes.starts_with(b"RIFF")
        && bytes.get(8..16) == Some(b"WEBPVP8X")
        && bytes.get(20).is_some_and(|flags| flags & ANIMATION != 0)
}

/// Returns whether a PNG file has the chunk `acTL` before its pixels.
fn is_animated_png(bytes: &[u8]) -> bool {
    let Some(mut rest) = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n") else { return false };
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let (len, name) = head.split_at(4);
        match name {
            b"acTL" => return true,
            b"IDAT" => return false,
            _ => {}
        }
        let len = u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize;
        // A checksum follows.
        let Some(next) = after.get(len.saturating_add(4)..) else { return false };
        rest = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(chunks: &[(&[u8; 4], usize)]) -> Vec<u8> {
        let chunk =
            |(name, len): &(&[u8; 4], usize)| [&(*len as u32).to_be_bytes()[..], &name[..], &vec![0; len + 4]].concat();
        [&b"\x89PNG\r\n\x1a\n"[..], &chunks.iter().flat_map(chunk).collect::<Vec<u8>>()].concat()
    }

    #[test]
    fn animations_are_told_from_stills_by_their_headers() {
        let webp = |flags: u8| [&b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0"[..], &[flags; 1], &[0; 9]].concat();
        assert!(expect_still(&webp(0x12)).unwrap_err().contains("animated WebP"));
        let animated = png(&[(b"IHDR", 13), (b"acTL", 8), (b"IDAT", 5)]);
        assert!(expect_still(&animated).unwrap_err().contains("animated PNG"));
        // Still, cut off, or with a length beyond the end.
        for still in [webp(0x10), png(&[(b"IHDR", 13), (b"IDAT", 5), (b"acTL", 8)]), animated[..40].to_vec(), vec![]] {
            assert_eq!(expect_still(&still), Ok(()), "{still:?}");
        }
        let mut long = png(&[(b"IHDR", 13)]);
        long[8..12].fill(0xff);
        assert_eq!(expect_still(&long), Ok(()));
    }
}
