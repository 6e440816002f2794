//! Data that is there in a form which is not read: what it is, and the command that makes one of it which is.

use std::path::Path;

use crate::config::hub_data_set;
use crate::data::file_kind::{FileKind, kind_of};

/// The file by which a data folder of Kaldi is known: a recording per line, behind the name of its utterance.
const KALDI: &str = "wav.scp";

/// Returns the reason why a file cannot be read, by its name; `None` for files that are read, or of which nothing is known.
pub fn file(path: &Path) -> Option<String> {
    if path.file_name().is_some_and(|name| name == KALDI) && path.is_file() {
        return Some(of_kaldi("is a file of a Kaldi data folder"));
    }
    let what = match kind_of(&path.to_string_lossy()).filter(|_| path.is_file()) {
        Some(FileKind::Picture) => "picture: name its folder, with captions as .txt beside it, or",
        Some(FileKind::Clip) => "clip: name its folder, with captions as .txt beside it, or",
        Some(FileKind::Recording) => "recording: name its folder, with transcripts as .txt beside it, or",
        None => return hub_data_set(path).map(|help| format!("does not exist; {help}")),
    };
    Some(format!("is a {what} a file of records that name it"))
}

/// Returns the reason why a folder cannot be read, by the names of its files; `None` where nothing is known of it.
pub fn folder(path: &Path) -> Option<String> {
    path.join(KALDI).is_file().then(|| of_kaldi("is a Kaldi data folder (wav.scp)"))
}

fn of_kaldi(what: &str) -> String {
    format!(
        "{what}, which is not read: write a .jsonl file with {{\"audio_filepath\": …, \"text\": …}} per utterance, for those of a \
         `segments` file also `offset` and `duration` in seconds, or a .tsv file whose first row is `audio` and `text`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_named_with_a_way_to_make_it_so() {
        assert!(file(Path::new("tatsu-lab/alpaca")).unwrap().contains("hf://datasets/tatsu-lab/alpaca"));
        let picture = tempfile::Builder::new().suffix(".PNG").tempfile().unwrap();
        assert!(file(picture.path()).unwrap().starts_with("is a picture: name its folder"));
        let recording = tempfile::Builder::new().suffix(".wav").tempfile().unwrap();
        assert!(file(recording.path()).unwrap().contains("transcripts as .txt beside it, or a file of records"));
        let kaldi = tempfile::tempdir().unwrap();
        assert_eq!(folder(kaldi.path()), None);
        std::fs::write(kaldi.path().join(KALDI), "u1 a.wav\n").unwrap();
        for said in [folder(kaldi.path()), file(&kaldi.path().join(KALDI))] {
            let said = said.unwrap();
            assert!(said.contains("Kaldi data folder") && said.contains("{\"audio_filepath\": …, "), "{said}");
        }
        assert!(file(Path::new("gone.jsonl")).is_none() && file(Path::new("data/train.jsonl")).is_none());
    }
}
