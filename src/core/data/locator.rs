//! The place of the bytes of a picture, a video's frame or a recording. Decoding them is not done here.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::DataError;
use crate::files;

/// Schemes of object stores and the web.
const REMOTE: [&str; 11] =
    ["s3://", "s3a://", "gs://", "gcs://", "az://", "azure://", "abfs://", "abfss://", "adl://", "http://", "https://"];
/// A larger file is no picture and no clip.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Says where bytes are.
#[derive(Clone, PartialEq, Eq)]
pub enum Locator {
    /// A file, relative to the record that names it.
    File(String),
    /// They are here: a member of an archive, a cell of a Parquet file, a `data:` URI. `name` is for messages and
    /// tells a file's kind by its extension; it is never opened.
    Bytes { name: String, bytes: Arc<[u8]> },
    /// The bytes are in an object store or behind HTTP; a source turns them into `Bytes` before a processor sees them.
    Url(String),
}

impl Locator {
    /// Parses the text of a record: a path, a `data:` URI, `file://…` or the URL of an object store.
    ///
    /// # Errors
    /// A `data:` URI that cannot be decoded.
    pub fn parse(text: &str) -> Result<Self, DataError> {
        if let Some(rest) = text.strip_prefix("data:") {
            return data_uri(rest).map_err(|reason| DataError::Line(format!("a data: URI {reason}")));
        }
        if let Some(path) = text.strip_prefix("file://") {
            return Ok(Self::File(path.to_owned()));
        }
        Ok(if is_remote(text) { Self::Url(text.to_owned()) } else { Self::File(text.to_owned()) })
    }

    /// Locates bytes that are here already; messages and extensions go by `name`.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::Bytes { name: name.into(), bytes: bytes.into() }
    }

    /// Returns its name: the path, the member's name or the URL.
    pub fn name(&self) -> &str {
        match self {
            Self::File(name) | Self::Bytes { name, .. } | Self::Url(name) => name,
        }
    }

    /// Returns how messages name it: files with what they are relative to.
    pub fn display(&self, base: &Path) -> String {
        match self {
            Self::File(name) => base.join(name).display().to_string(),
            Self::Bytes { name, .. } | Self::Url(name) => name.clone(),
        }
    }

    /// Returns the extension in lower case without the dot, or nothing.
    pub fn extension(&self) -> String {
        let extension = Path::new(self.name()).extension();
        extension.map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default()
    }

    /// Returns the bytes, of which there may be 256 MiB.
    ///
    /// # Errors
    /// Named: missing, too large, cannot be read; a URL that was not fetched.
    pub fn read(&self, base: &Path) -> Result<Cow<'_, [u8]>, DataError> {
        match self {
            Self::File(name) => read_file(&base.join(name)).map(Cow::Owned),
            Self::Bytes { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            Self::Url(url) => Err(DataError::image(Path::new(url), "is in an object store and was not fetched")),
        }
    }

    /// Works like [`Locator::read`] for a recording, which is named so where it cannot be read.
    ///
    /// # Errors
    /// Named: missing, too large, cannot be read; a URL that was not fetched.
    pub fn read_sound(&self, base: &Path) -> Result<Cow<'_, [u8]>, DataError> {
        self.read(base).map_err(|error| match error {
            DataError::Image { path, reason } => DataError::Audio { path, reason },
            other => other,
        })
    }
}

/// Short: bytes are counted, not shown.
impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => write!(f, "File({name:?})"),
            Self::Bytes { name, bytes } => write!(f, "Bytes({name:?}, {} bytes)", bytes.len()),
            Self::Url(url) => write!(f, "Url({url:?})"),
        }
    }
}

impl From<&str> for Locator {
    /// Makes the locator of a file.
    fn from(path: &str) -> Self {
        Self::File(path.to_owned())
    }
}

/// Returns whether a path is the URL of an object store or of a web server.
pub fn is_remote(path: &str) -> bool {
    REMOTE.iter().any(|scheme| path.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

/// Reads a picture or clip file as it is.
///
/// # Errors
/// It is no regular file, is too large, or cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    files::read(path, MAX_FILE_BYTES).map_err(|error| DataError::image(path, error))
}

/// Parses `image/png;base64,…` (RFC 2397), named `data.png`.
fn data_uri(rest: &str) -> Result<Locator, String> {
    let (head, body) = rest.split_once(',').ok_or("has no comma")?;
    let mut words = head.split(';');
    let media_type = words.next().unwrap_or_default();
    if !words.any(|word| word.eq_ignore_ascii_case("base64")) {
        return Err(format!("of {media_type:?} is not encoded as base64"));
    }
    let body: Cow<'_, str> = match body.contains(|c: char| c.is_ascii_whitespace()) {
        true => body.split_ascii_whitespace().collect::<String>().into(),
        false => body.into(),
    };
    let bytes = STANDARD.decode(body.as_bytes()).map_err(|error| format!("of {media_type:?}: {error}"))?;
    let subtype = media_type.split_once('/').map_or("", |(_, subtype)| subtype);
    let is_plain = !subtype.is_empty() && subtype.bytes().all(|byte| byte.is_ascii_alphanumeric());
    Ok(Locator::bytes(if is_plain { format!("data.{subtype}") } else { "data".to_owned() }, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_may_name_files_urls_and_bytes() {
        let parse = |text: &str| Locator::parse(text).unwrap();
        assert_eq!(parse("a/b.PNG"), Locator::File("a/b.PNG".into()));
        assert_eq!(parse("file:///a b.png"), Locator::File("/a b.png".into()));
        assert_eq!(parse("S3://bucket/a.jpg"), Locator::Url("S3://bucket/a.jpg".into()));
        let bytes = parse("data:image/png;base64,aGV sbG8=");
        assert_eq!(bytes, Locator::bytes("data.png", *b"hello"));
        assert_eq!((bytes.extension().as_str(), parse("a/b.PNG").extension().as_str()), ("png", "png"));
        assert_eq!(&*bytes.read(Path::new("x")).unwrap(), b"hello");
        assert_eq!(format!("{bytes:?}"), "Bytes(\"data.png\", 5 bytes)");
        assert_eq!(parse("data:;base64,").name(), "data");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (text, part) in [
            ("data:image/png;base64,*", "image/png"),
            ("data:image/png,abc", "not encoded as base64"),
            ("data:image/png;base64", "comma"),
        ] {
            let error = Locator::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = Locator::from("no/such.png").read(Path::new("base")).unwrap_err().to_string();
        assert!(error.contains("base/no/such.png"), "{error}");
        let url = Locator::parse("https://host/a.png").unwrap();
        assert!(url.read(Path::new("")).unwrap_err().to_string().contains("https://host/a.png"));
    }
}
