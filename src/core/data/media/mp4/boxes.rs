//! The boxes of ISO base media files (ISO/IEC 14496-12): a size, a name of four letters, contents. Reads no further than
//! the bytes that are there and allocates nothing.

/// Boxes one after another. Ends at the first that is longer than what is left.
#[derive(Clone, Copy)]
pub struct Boxes<'a>(pub &'a [u8]);

impl<'a> Iterator for Boxes<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut header = Fields(self.0);
        let short = header.u32()?;
        let name = *header.take(4)?.first_chunk()?;
        let size = match short {
            0 => self.0.len(),
            1 => usize::try_from(header.u64()?).ok()?,
            size => size as usize,
        };
        let begin = self.0.len() - header.0.len();
        let contents = self.0.get(begin..size)?;
        self.0 = &self.0[size..];
        Some((name, contents))
    }
}

impl<'a> Boxes<'a> {
    /// Returns the contents of the first box of a name.
    pub fn contents(mut self, name: &[u8; 4]) -> Option<&'a [u8]> {
        self.find(|(other, _)| other == name).map(|(_, contents)| contents)
    }

    /// Returns the contents of a box within boxes.
    pub fn path(self, names: &[&[u8; 4]]) -> Option<&'a [u8]> {
        names.iter().try_fold(self.0, |bytes, name| Boxes(bytes).contents(name))
    }
}

/// Numbers one after another, most significant byte first.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Takes the next `len` bytes; `None`: there are fewer.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes a byte; `None`: there is none left.
    pub fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// Takes a big-endian number of 2 bytes; `None`: there are fewer.
    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    /// Takes a big-endian number of 4 bytes; `None`: there are fewer.
    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.take(4)?.first_chunk()?))
    }

    /// Takes a big-endian number of 8 bytes; `None`: there are fewer.
    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.take(8)?.first_chunk()?))
    }

    /// Returns a table behind its version, flags and number of entries: entries of `N` bytes.
    pub fn table<const N: usize>(contents: &'a [u8]) -> Option<&'a [[u8; N]]> {
        let mut fields = Fields(contents);
        fields.u32()?;
        let len = fields.u32()? as usize;
        fields.0.as_chunks::<N>().0.get(..len)
    }
}
