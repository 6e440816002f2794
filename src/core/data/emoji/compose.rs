//! Dialogues about the pictures of packages: what is shown, and of some what kind of thing it is.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::merges::learn_merges;
use super::package::{Emoji, Package};
use super::picture::on_white;
use super::{EMOJI_MODEL, NUM_MERGES};
use crate::data::digits::write_model_with;
use crate::data::error::DataError;
use crate::data::new_folder::NewFolder;
use crate::rng::{Rng, permute};

pub const PROMPT: &str = "What is shown?";
const KIND: &str = "What kind is it?";
/// One dialogue in so many goes on with that.
const KIND_EVERY: u64 = 8;
/// One variant in so many is held out, in every package: its thing and its tone are learned, but not together.
const HELD_OUT: u64 = 10;
const TONES: [(&str, &str); 5] =
    [("1F3FB", "light"), ("1F3FC", "medium-light"), ("1F3FD", "medium"), ("1F3FE", "medium-dark"), ("1F3FF", "dark")];

/// Describes how many samples were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Composed {
    pub num_train: usize,
    pub num_held_out: usize,
}

/// Writes `train.json` (ShareGPT's layout), `held_out.jsonl` (questions about variants of skin that are not in it), their
/// pictures and `model/` (without weights) into `dir`, which must be new or empty.
///
/// # Errors
/// A package cannot be read or is another one; `dir` holds something or cannot be written.
pub fn compose(dir: &Path, packages: &[impl AsRef<Path>], seed: u64) -> Result<Composed, DataError> {
    let new = NewFolder::begin(dir)?;
    let to = new.path();
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for (set, path) in packages.iter().enumerate() {
        let package = Package::read(path.as_ref())?;
        let folder = format!("images/{set}");
        fs::create_dir_all(to.join(&folder)).map_err(|error| DataError::write(dir, error))?;
        let mut num_written: u64 = 0;
        for (row, emoji) in package.table.iter().enumerate() {
            for (image, caption, key) in variants(emoji) {
                let Some(picture) = package.pictures.get(image) else { continue };
                // A name of ours: those of the archive are keys alone.
                let file = format!("{folder}/{num_written:05}.png");
                num_written += 1;
                let picture =
                    on_white(picture).map_err(|reason| DataError::file(path.as_ref(), format!("{image}: {reason}")))?;
                fs::write(to.join(&file), picture).map_err(|error| DataError::write(&dir.join(&file), error))?;
                let is_held_out = key.is_some_and(|tone| Rng::new(&[seed, row as u64, tone]).below(HELD_OUT) == 0);
                match is_held_out {
                    true => held_out.push(question(&file, &caption)),
                    false => {
                        let goes_on = Rng::new(&[seed, set as u64, num_written]).below(KIND_EVERY) == 0;
                        train.push(dialogue(&file, &caption, goes_on.then_some(&emoji.category)));
                    }
                }
            }
        }
    }
    let order = |index: usize| permute(index as u64, train.len() as u64, &[seed]) as usize;
    let shuffled: Vec<&Json> = (0..train.len()).map(|index| &train[order(index)]).collect();
    let lines: String = held_out.iter().map(|line| format!("{line}\n")).collect();
    for (name, text) in
        [("train.json", serde_json::to_string_pretty(&shuffled).expect("JSON")), ("held_out.jsonl", lines)]
    {
        fs::write(to.join(name), text).map_err(|error| DataError::write(&dir.join(name), error))?;
    }
    let texts = |row: &Json| -> Vec<String> {
        let turns = row["conversations"].as_array().into_iter().flatten();
        turns.map(|turn| turn["value"].as_str().unwrap_or_default().replace("<image>", "")).collect()
    };
    let roles = ["user\n", "assistant\n"].map(str::to_owned);
    let texts: Vec<String> =
        train.iter().flat_map(texts).chain(roles.iter().cycle().take(2 * train.len()).cloned()).collect();
    let merges = learn_merges(texts.iter().map(String::as_str), NUM_MERGES);
    write_model_with(&to.join("model"), &EMOJI_MODEL, &merges)?;
    new.publish("train.json")?;
    Ok(Composed { num_train: train.len(), num_held_out: held_out.len() })
}

/// Returns the picture, caption and, for a variant of one tone, the tone of everything in a row.
fn variants(emoji: &Emoji) -> Vec<(&str, String, Option<u64>)> {
    let name = emoji.name.clone().unwrap_or_else(|| emoji.short_name.replace(['_', '-'], " ")).to_lowercase();
    let mut found = vec![(emoji.image.as_str(), name.clone(), None)];
    for (code, variation) in &emoji.skin_variations {
        let tone = |code: &str| TONES.iter().position(|(known, _)| *known == code);
        let tones: Option<Vec<usize>> = code.split('-').map(tone).collect();
        let Some(tones) = tones else { continue };
        let words: Vec<&str> = tones.iter().map(|&tone| TONES[tone].1).collect();
        let key = (tones.len() == 1).then(|| tones[0] as u64);
        found.push((&variation.image, format!("{name}, {} skin", words.join(" and ")), key));
    }
    found
}

fn dialogue(file: &str, caption: &str, category: Option<&String>) -> Json {
    let turn = |from: &str, value: &str| json!({ "from": from, "value": value });
    let mut turns = vec![turn("human", &format!("<image>{PROMPT}")), turn("gpt", caption)];
    turns.extend(category.into_iter().flat_map(|kind| [turn("human", KIND), turn("gpt", &kind.to_lowercase())]));
    json!({ "image": file, "conversations": turns })
}

fn question(file: &str, caption: &str) -> Json {
    let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
    json!({ "messages": [turn("user", &format!("<image>{PROMPT}")), turn("assistant", caption)], "images": [file] })
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn package(files: &[(&str, &[u8])]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = tar::Builder::new(GzEncoder::new(file.reopen().unwrap(), Compression::fast()));
        for (name, bytes) in files {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, *bytes).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
        file
    }

    #[test]
    fn variants_are_learned_or_asked_about_and_names_are_ours() {
        let tones: Vec<String> =
            TONES.iter().map(|(code, _)| format!(r#""{code}": {{"image": "hand-{code}.png"}}"#)).collect();
        let rows: Vec<String> = (0..20)
            .map(|row| {
                format!(
                    r#"{{"name": "HAND {row}", "short_name": "h", "image": "hand.png", "category": "Body", "skin_variations": {{{}}}}}"#,
                    tones.join(",")
                )
            })
            .collect();
        let table = format!("[{}]", rows.join(","));
        let mut png = std::io::Cursor::new(Vec::new());
        image::RgbaImage::new(4, 4).write_to(&mut png, image::ImageFormat::Png).unwrap();
        let png = png.into_inner();
        let names: Vec<String> = TONES.iter().map(|(code, _)| format!("package/img/x/64/hand-{code}.png")).collect();
        let mut files: Vec<(&str, &[u8])> =
            vec![("package/emoji.json", table.as_bytes()), ("package/img/x/64/hand.png", &png)];
        files.extend(names.iter().map(|name| (name.as_str(), &png[..])));
        let (package, dir) = (package(&files), tempfile::tempdir().unwrap());
        let made = compose(&dir.path().join("a"), &[package.path()], 1).unwrap();
        assert_eq!(made.num_train + made.num_held_out, 20 * 6);
        assert!((4..20).contains(&made.num_held_out), "{made:?}");
        let train: Vec<Json> = serde_json::from_slice(&fs::read(dir.path().join("a/train.json")).unwrap()).unwrap();
        let asked = fs::read_to_string(dir.path().join("a/held_out.jsonl")).unwrap();
        let captions: Vec<&str> = train.iter().map(|row| row["conversations"][1]["value"].as_str().unwrap()).collect();
        for line in asked.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            assert!(!captions.contains(&line["messages"][1]["content"].as_str().unwrap()));
            assert!(dir.path().join("a").join(line["images"][0].as_str().unwrap()).exists());
        }
        assert!(captions.contains(&"hand 3, dark skin") || asked.contains("hand 3, dark skin"));
        let error = compose(&dir.path().join("a"), &[package.path()], 1).unwrap_err().to_string();
        assert!(error.contains("new folder"), "{error}");
    }

    #[test]
    fn another_archive_is_said() {
        let package = package(&[("package/readme.md", b"hello")]);
        let dir = tempfile::tempdir().unwrap();
        let error = compose(&dir.path().join("a"), &[package.path()], 1).unwrap_err().to_string();
        assert!(error.contains("emoji-datasource"), "{error}");
        fs::write(package.path(), b"no archive").unwrap();
        assert!(compose(&dir.path().join("b"), &[package.path()], 1).is_err());
    }
}
