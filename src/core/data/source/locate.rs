//! The meaning of the names of files in a record.

use std::path::Path;

use super::block::Record;
use crate::data::error::DataError;
use crate::data::file_kind::{CLIPS, PICTURES, RECORDINGS};
use crate::data::locator::{Locator, is_remote};
use crate::data::media::natural;

/// Finds the files that a record names.
pub trait Locate {
    fn file(&self, name: &str) -> Result<Locator, DataError>;

    /// Returns a clip, or the frames of one.
    fn video(&self, name: &str) -> Result<Vec<Locator>, DataError> {
        Ok(vec![self.file(name)?])
    }
}

/// Names mean what they say.
pub struct AsNamed;

impl Locate for AsNamed {
    fn file(&self, name: &str) -> Result<Locator, DataError> {
        Locator::parse(name)
    }
}

/// The files of one record, and what others are relative to.
pub struct Files<'a> {
    pub record: &'a Record,
    /// The folder, with a slash at the end, or empty.
    pub folder: &'a str,
}

impl Files<'_> {
    fn member(&self, name: &str) -> Option<Locator> {
        let Record { key, members, .. } = self.record;
        let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let with_key = |member: &str| format!("{key}.{member}");
        let found = members
            .iter()
            .find(|(member, _)| member == name)
            .or_else(|| members.iter().find(|(member, _)| self.record.is_closed && with_key(member) == name))
            .or_else(|| {
                let named = |member: &str| file_name(name) == file_name(&with_key(member)) || file_name(name) == member;
                members.iter().find(|(member, _)| self.record.is_closed && named(member))
            })
            .or_else(|| {
                // The original name in the record, a bare extension in the archive.
                let extension = Path::new(name).extension()?.to_str()?.to_lowercase();
                let mut same = members.iter().filter(|(member, _)| self.record.is_closed && kin(member, &extension));
                same.next().filter(|_| same.next().is_none())
            });
        // The whole name, so that messages tell it and its extension is seen.
        let whole = |member: &str| if self.record.is_closed { with_key(member) } else { member.to_owned() };
        found.map(|(member, bytes)| Locator::Bytes { name: whole(member), bytes: bytes.clone() })
    }
}

impl Locate for Files<'_> {
    fn file(&self, name: &str) -> Result<Locator, DataError> {
        if let Some(member) = self.member(name) {
            return Ok(member);
        }
        if self.record.is_closed && !name.starts_with("data:") {
            let members: Vec<&str> = self.record.members.iter().map(|(member, _)| member.as_str()).take(8).collect();
            let reason = format!("names {name:?}, which is not in the archive under {}: {members:?}", self.record.key);
            return Err(DataError::Line(reason));
        }
        Ok(match Locator::parse(name)? {
            Locator::File(path) if is_remote(self.folder) && !path.starts_with('/') => {
                Locator::Url(format!("{}{path}", self.folder))
            }
            Locator::File(path) => Locator::File(Path::new(self.folder).join(path).to_string_lossy().into_owned()),
            other => other,
        })
    }

    /// Finds the files of a video. In an archive they may be the members whose names begin with `name` and a dot, ordered by their
    /// numbers.
    fn video(&self, name: &str) -> Result<Vec<Locator>, DataError> {
        let prefix = format!("{name}.");
        let frames = self.record.members.iter().map(|(member, _)| member.as_str());
        let mut frames: Vec<&str> =
            frames.filter(|member| self.record.is_closed && member.starts_with(&prefix)).collect();
        if self.record.member(name).is_some() || frames.is_empty() {
            return Ok(vec![self.file(name)?]);
        }
        frames.sort_by(|a, b| natural(a, b));
        frames.into_iter().map(|frame| self.file(frame)).collect()
    }
}

/// Returns whether a member is a bare extension of that kind.
fn kin(member: &str, extension: &str) -> bool {
    let same = |kinds: &[&str]| kinds.contains(&member) && kinds.contains(&extension);
    member == extension || same(&PICTURES) || same(&CLIPS) || same(&RECORDINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_name_their_own_members_alone() {
        let bytes = || std::sync::Arc::from(*b"x");
        let members = ["jpg", "0_a.png", "clip.10.jpg", "clip.9.jpg"].map(|name| (name.to_owned(), bytes())).to_vec();
        let record = Record { members, key: "d/k".into(), is_closed: true, ..Record::default() };
        let files = Files { record: &record, folder: "data/" };
        let name = |text: &str| files.file(text).unwrap().name().to_owned();
        assert_eq!(name("0_a.png"), "d/k.0_a.png");
        assert_eq!(
            (name("d/k.jpg"), name("k.jpg"), name("coco/123.jpeg")),
            ("d/k.jpg".into(), "d/k.jpg".into(), "d/k.jpg".into())
        );
        let frames = files.video("clip").unwrap();
        assert_eq!(frames.iter().map(Locator::name).collect::<Vec<_>>(), ["d/k.clip.9.jpg", "d/k.clip.10.jpg"]);
        for text in ["/etc/passwd", "../x.webp2", "https://host/a", "file:///a"] {
            assert!(files.file(text).unwrap_err().to_string().contains("not in the archive under d/k"), "{text}");
        }
        assert!(files.file("data:image/png;base64,aGVsbG8=").is_ok());

        let open = Record::default();
        let files = |folder| Files { record: &open, folder };
        assert_eq!(files("data/").file("a.jpg").unwrap(), Locator::File("data/a.jpg".into()));
        assert_eq!(files("data/").file("/a.jpg").unwrap(), Locator::File("/a.jpg".into()));
        assert_eq!(files("s3://b/d/").file("a.jpg").unwrap(), Locator::Url("s3://b/d/a.jpg".into()));
    }
}
