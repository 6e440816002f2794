//! The kinds of files of data, by their names.

/// Extensions of pictures.
pub const PICTURES: [&str; 9] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "img"];
/// Extensions of clips.
pub const CLIPS: [&str; 8] = ["mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "flv"];
/// Extensions of recordings.
pub const RECORDINGS: [&str; 9] = ["wav", "flac", "mp3", "ogg", "m4a", "opus", "aiff", "aif", "aifc"];

/// The kinds of files that samples name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Picture,
    Clip,
    Recording,
}

/// Returns the kind of a file by its name.
pub fn kind_of(name: &str) -> Option<FileKind> {
    let extension = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let is = |kinds: &[&str]| kinds.contains(&extension.as_str());
    match () {
        () if is(&PICTURES) => Some(FileKind::Picture),
        () if is(&CLIPS) => Some(FileKind::Clip),
        () if is(&RECORDINGS) => Some(FileKind::Recording),
        () => None,
    }
}

/// Returns whether a file is a recording by its name.
pub fn is_recording(name: &str) -> bool {
    name.contains('.') && kind_of(name) == Some(FileKind::Recording)
}
