//! A tar archive as WebDataset lays samples in it: files that follow one another and share the name before the first
//! dot are one sample. Only regular files are looked at, names are keys, and sizes are checked before memory is taken.

use std::sync::Arc;

use tar::{EntryType, Header};

use super::blob::Blob;
use super::block::{Block, Body, Record};
use super::fields::members_of;
use super::strict;
use crate::data::limits::MAX_SAMPLE_BYTES;

const HEADER: u64 = 512;
/// Headers between two files of a sample.
const MAX_GAP: u64 = 4 << 10;
/// Files of one archive.
const MAX_MEMBERS: usize = 8 << 20;
/// Bytes of one file.
const MAX_MEMBER_BYTES: u64 = 256 << 20;
/// Bytes of a name or of extended headers.
const MAX_NAME_BYTES: u64 = 64 << 10;

pub struct Archive {
    blob: Arc<Blob>,
    samples: Vec<Sample>,
    /// The reason why the last sample, which stands for all that are lost, cannot be read.
    torn: Option<String>,
}

#[derive(Default)]
struct Sample {
    key: String,
    members: Vec<Member>,
}

struct Member {
    /// The part of the name behind its first dot.
    extension: String,
    offset: u64,
    len: u64,
}

impl Archive {
    /// Reads the headers.
    ///
    /// # Errors
    /// The reason: not one header can be read.
    pub fn open(blob: Arc<Blob>) -> Result<Self, String> {
        let mut archive = Self { blob, samples: Vec::new(), torn: None };
        if let Err(reason) = archive.scan() {
            if archive.samples.is_empty() {
                return Err(format!("not a tar archive: {reason}"));
            }
            let key = format!("after {}", archive.samples[archive.samples.len() - 1].key);
            archive.samples.push(Sample { key, members: Vec::new() });
            archive.torn = Some(format!("the archive is damaged from here on: {reason}"));
        }
        Ok(archive)
    }

    fn scan(&mut self) -> Result<(), String> {
        let (mut at, mut num_members, mut long_name) = (0, 0, None);
        while at < self.blob.len() {
            let block = self.blob.scan_at(at, HEADER as usize).map_err(|error| error.to_string())?;
            if block.iter().all(|&byte| byte == 0) {
                return Ok(());
            }
            let header = Header::from_byte_slice(&block);
            let sum = block[..148].iter().chain(&block[156..]).map(|&byte| u32::from(byte)).sum::<u32>() + 8 * 32;
            if header.cksum().ok() != Some(sum) {
                return Err(format!("no header at byte {at}"));
            }
            let len = header.entry_size().map_err(|error| error.to_string())?;
            let begin = at + HEADER;
            let kind = header.entry_type();
            match kind {
                EntryType::GNULongName => long_name = Some(trim(self.extension(begin, len)?)),
                EntryType::XHeader => {
                    let (name, size) = pax(&self.extension(begin, len)?);
                    if size.is_some_and(|size| size > MAX_MEMBER_BYTES) {
                        return Err(format!("a file is larger than {} MiB", MAX_MEMBER_BYTES >> 20));
                    }
                    long_name = name.or(long_name);
                }
                EntryType::GNULongLink | EntryType::XGlobalHeader => {}
                _ => {
                    let name = long_name.take().unwrap_or_else(|| header.path_bytes().into_owned());
                    if matches!(kind, EntryType::Regular | EntryType::Continuous) || block[156] == 0 {
                        num_members += 1;
                        if num_members > MAX_MEMBERS {
                            return Err(format!("it has more than {MAX_MEMBERS} files"));
                        }
                        self.add(&String::from_utf8_lossy(&name), begin, len);
                    }
                }
            }
            let padded = len.checked_next_multiple_of(HEADER).and_then(|len| begin.checked_add(len));
            // A file that ends too early is seen when its sample is read.
            at = padded.ok_or("a header states an impossible file size")?;
        }
        Ok(())
    }

    fn extension(&self, begin: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > MAX_NAME_BYTES {
            return Err(format!("a file name has {len} bytes (at most {MAX_NAME_BYTES} are allowed)"));
        }
        self.blob.scan_at(begin, len as usize).map_err(|error| error.to_string())
    }

    fn add(&mut self, name: &str, offset: u64, len: u64) {
        let file_name = name.rfind('/').map_or(0, |slash| slash + 1);
        // As WebDataset: names without an extension belong to no sample.
        let Some(dot) = name[file_name..].find('.').filter(|&dot| dot > 0) else { return };
        let (key, extension) = (&name[..file_name + dot], &name[file_name + dot + 1..]);
        if self.samples.last().is_none_or(|sample| sample.key != key) {
            self.samples.push(Sample { key: key.to_owned(), members: Vec::new() });
        }
        let member = Member { extension: extension.to_owned(), offset, len };
        self.samples.last_mut().expect("one was just pushed").members.push(member);
    }
}

impl Block for Archive {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    /// Returns the number of bytes of the text or the record.
    fn num_bytes(&self, index: u64) -> u64 {
        let members = &self.samples[index as usize].members;
        members.iter().filter(|member| is_text(&member.extension)).map(|member| member.len).sum()
    }

    fn member_bytes(&self, index: u64, place: &str) -> u64 {
        let members = &self.samples[index as usize].members;
        let is_named = |member: &&Member| members_of(place).any(|(name, _)| name == member.extension);
        members.iter().filter(is_named).map(|member| member.len).max().unwrap_or(0)
    }

    fn read(&self, index: u64) -> Result<Record, String> {
        let sample = &self.samples[index as usize];
        if let Some(reason) = self.torn.as_ref().filter(|_| index + 1 == self.len()) {
            return Err(reason.clone());
        }
        let mut names: Vec<&str> = sample.members.iter().map(|member| member.extension.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|names| names[0] == names[1]) {
            let name = format!("{}.{}", sample.key, twice[0]);
            return Err(format!("two files are called {name}: samples that follow each other need keys of their own"));
        }
        let (most, total) =
            (sample.members.iter().map(|m| m.len).max(), sample.members.iter().map(|m| m.len).sum::<u64>());
        if most.unwrap_or(0) > MAX_MEMBER_BYTES || total > MAX_SAMPLE_BYTES {
            return Err(format!("sample is too large: its files have {total} bytes"));
        }
        let mut record = Record { key: sample.key.clone(), is_closed: true, ..Record::default() };
        // They lie one behind the other: one read.
        let (first, last) = (&sample.members[0], &sample.members[sample.members.len() - 1]);
        let span = last.offset + last.len - first.offset;
        let whole = match span <= total + sample.members.len() as u64 * MAX_GAP {
            true => Some(self.blob.read_at(first.offset, span as usize).map_err(|error| error.to_string())?),
            false => None,
        };
        for member in &sample.members {
            let len = member.len as usize;
            let bytes: Arc<[u8]> = match &whole {
                Some(whole) => whole[(member.offset - first.offset) as usize..][..len].into(),
                None => self.blob.read_at(member.offset, len).map_err(|error| error.to_string())?.into(),
            };
            record.members.push((member.extension.clone(), bytes));
        }
        if let Some(json) = record.member("json") {
            let text = std::str::from_utf8(json).map_err(|_| "its json is not UTF-8".to_owned())?;
            let json = strict::parse(text).map_err(|error| format!("json: not a sample: {error}"))?;
            record.body = Body::Json(json);
        }
        Ok(record)
    }

    fn lost(&self) -> Option<&str> {
        self.torn.as_deref()
    }

    fn name(&self, index: u64) -> String {
        self.samples[index as usize].key.clone()
    }
}

fn is_text(extension: &str) -> bool {
    matches!(extension, "json" | "txt" | "text")
}

/// A GNU long name ends in a zero.
fn trim(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// Reads `path` and `size` of extended headers: records `LENGTH KEY=VALUE\n`.
fn pax(bytes: &[u8]) -> (Option<Vec<u8>>, Option<u64>) {
    let (mut name, mut size, mut rest) = (None, None, bytes);
    while let Some(space) = rest.iter().position(|&byte| byte == b' ') {
        let len: Option<usize> = std::str::from_utf8(&rest[..space]).ok().and_then(|len| len.parse().ok());
        let Some(len) = len.filter(|&len| len > space && len <= rest.len()) else { break };
        let record = rest[space + 1..len].strip_suffix(b"\n").unwrap_or(&rest[space + 1..len]);
        if let Some(value) = record.strip_prefix(b"path=") {
            name = Some(value.to_vec());
        } else if let Some(value) = record.strip_prefix(b"size=") {
            size = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        }
        rest = &rest[len..];
    }
    (name, size)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an archive of files.
    pub fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn open(bytes: Vec<u8>) -> Result<Archive, String> {
        Archive::open(Arc::new(Blob::Memory(bytes.into())))
    }

    fn keys(archive: &Archive) -> Vec<String> {
        (0..archive.len()).map(|index| archive.name(index)).collect()
    }

    #[test]
    fn files_of_one_key_are_a_sample() {
        let long = format!("{}/x.json", "d".repeat(150));
        let archive = open(tar(&[
            ("d/a.json", b"{\"n\": 1}"),
            ("d/a.0_p.jpg", b"J"),
            (&long, b"[]"),
            ("none", b""),
            ("b.txt", b"hi"),
        ]));
        let archive = archive.unwrap();
        assert_eq!(keys(&archive), ["d/a".to_owned(), long[..152].to_owned(), "b".to_owned()]);
        let record = archive.read(0).unwrap();
        assert_eq!((record.field("n"), &**record.member("0_p.jpg").unwrap()), (Some(&1.into()), &b"J"[..]));
        assert!(record.is_closed && matches!(archive.read(2).unwrap().body, Body::None));
        // What the text is in counts, and what is told of it beside it does not.
        let named = open(tar(&[("a.page.txt", b"hello"), ("a.txt", b"hi"), ("a.meta.json", b"{ }")])).unwrap();
        let places = ["page.txt", "meta.json[a][0]", "md, meta.json", "jpg"];
        assert_eq!(places.map(|place| named.member_bytes(0, place)), [5, 3, 3, 0]);
        assert_eq!(named.num_bytes(0), 2);
    }

    #[test]
    fn samples_of_one_key_that_follow_each_other_are_not_taken_for_one() {
        let archive = open(tar(&[("a.jpg", b"1"), ("a.txt", b"x"), ("a.jpg", b"2"), ("a.txt", b"y"), ("b.txt", b"z")]));
        let archive = archive.unwrap();
        assert!(archive.read(0).unwrap_err().contains("two files are called a.jpg"));
        assert!(archive.len() == 2 && archive.read(1).is_ok());
    }

    #[test]
    fn links_and_devices_are_no_members_and_a_torn_end_is_one_bad_sample() {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name) in [(EntryType::Symlink, "a.jpg"), (EntryType::Char, "b.jpg"), (EntryType::Link, "c.jpg")] {
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            header.set_link_name("/etc/passwd").unwrap();
            builder.append_data(&mut header, name, &b""[..]).unwrap();
        }
        let mut header = Header::new_gnu();
        header.set_size(2);
        header.as_gnu_mut().unwrap().name[..14].copy_from_slice(b"../../up.json\0");
        header.set_cksum();
        builder.append(&header, &b"{}"[..]).unwrap();
        let archive = open(builder.into_inner().unwrap()).unwrap();
        assert_eq!(keys(&archive), ["../../up"]);
        assert_eq!(archive.read(0).unwrap().members.len(), 1);

        let whole = tar(&[("a.txt", b"a"), ("b.txt", &[b'b'; 2000])]);
        let torn = open(whole[..2000].to_vec()).unwrap();
        assert_eq!((torn.len(), torn.read(0).is_ok()), (2, true));
        assert!(torn.read(1).unwrap_err().contains("truncated"));
        let mut lies = whole.clone();
        lies[1024 + 124..1024 + 136].copy_from_slice(b"77777777777\0");
        let lies = open(lies).unwrap();
        assert!(lies.read(0).is_ok() && lies.read(1).unwrap_err().contains("no header"), "the checksum says so");
        assert_eq!((lies.len(), lies.name(1).as_str()), (2, "after a"));
        assert!(open(b"hello".repeat(300)).err().unwrap().contains("not a tar archive"));
        assert_eq!(open(Vec::new()).unwrap().len(), 0);
    }

    proptest! {
        #[test]
        fn damaged_archives_never_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = tar(&[("a.json", b"{}"), ("a.jpg", b"x"), (&format!("{}.txt", "n".repeat(200)), b"y")]);
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            if let Ok(archive) = open(bytes) {
                (0..archive.len()).for_each(|index| drop((archive.read(index), archive.num_bytes(index))));
            }
        }
    }
}
