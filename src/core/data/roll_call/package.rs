//! The speech of the game Fish Fillets NG as Debian packages it: a small and a big fish, in Czech and in Dutch.
//!
//! ```text
//! script/LEVEL/dialogs_en.lua      dialogId("ID", "font_small", "…")     who says a line
//! sound/LEVEL/cs/ID.ogg            how it is said in Czech; nl: in Dutch
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::data::error::DataError;

/// The packages of Debian that hold the lines, the Czech speech and the Dutch speech.
pub const PACKAGES: [&str; 3] = ["fillets-ng-data", "fillets-ng-data-cs", "fillets-ng-data-nl"];
/// The folder of the packages' files, below the root that they are unpacked into.
const FOLDER: &str = "usr/share/games/fillets-ng";
/// The speakers, by the font of their lines: the small fish and the big one.
const FONTS: [&str; 2] = ["font_small", "font_big"];
/// The languages that both of them speak, by the folder of their recordings: Czech and Dutch, with the words that they have
/// for the small fish and for the big one, without accents. Such a word is the answer that names a voice.
const LANGUAGES: [(&str, [&str; 2]); 2] = [("cs", ["mala", "velka"]), ("nl", ["kleine", "grote"])];
/// The number of voices: every speaker in every language.
pub(super) const NUM_VOICES: usize = FONTS.len() * LANGUAGES.len();

/// A recorded line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clip {
    pub level: String,
    /// The number of the voice, below [`NUM_VOICES`].
    pub voice: usize,
    pub path: PathBuf,
}

/// Returns the number of a voice's language.
pub(super) fn language(voice: usize) -> usize {
    voice / FONTS.len()
}

/// Returns the answer that names a voice, for example `mala`.
pub(super) fn name(voice: usize) -> &'static str {
    LANGUAGES[voice / FONTS.len()].1[voice % FONTS.len()]
}

/// Lists the lines of both speakers in both languages, by level and name. `from` is the game's folder, or the root that the
/// packages are installed or unpacked into.
///
/// # Errors
/// Files of a package are missing, which names it, or cannot be read.
pub(super) fn clips(from: &Path) -> Result<Vec<Clip>, DataError> {
    let below = from.join(FOLDER);
    let game = if below.is_dir() { below } else { from.to_owned() };
    let mut clips = Vec::new();
    let mut has_lines = false;
    for level in folders(&game.join("script"))? {
        let lines = speakers(&game.join("script").join(&level).join("dialogs_en.lua"))?;
        has_lines |= !lines.is_empty();
        for (language, (folder, _)) in LANGUAGES.iter().enumerate() {
            let folder = game.join("sound").join(&level).join(folder);
            clips.extend(lines.iter().filter_map(|(id, speaker)| {
                let path = folder.join(format!("{id}.ogg"));
                path.is_file().then(|| Clip { level: level.clone(), voice: language * FONTS.len() + speaker, path })
            }));
        }
    }
    let speaks = |language: usize| clips.iter().any(|clip| clip.voice / FONTS.len() == language);
    let is_recorded = |language: usize| -> Result<bool, DataError> {
        let (sound, folder) = (game.join("sound"), LANGUAGES[language].0);
        Ok(speaks(language)
            || (!has_lines && folders(&sound)?.iter().any(|level| sound.join(level).join(folder).is_dir())))
    };
    let is_there = [has_lines, is_recorded(0)?, is_recorded(1)?];
    let missing: Vec<&str> = PACKAGES.iter().zip(is_there).filter(|(_, is)| !is).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(clips);
    }
    let all = PACKAGES.join(" ");
    Err(DataError::file(
        from,
        format!(
            "has no files of the Debian packages {} (GPL-2). Install them, for --from /: apt install {all}. Or unpack \
             them: apt-get download {all}, dpkg -x each file into one folder, and name that folder",
            missing.join(" and ")
        ),
    ))
}

/// Names of the folders in `dir`, sorted; none where there is no such folder.
fn folders(dir: &Path) -> Result<Vec<String>, DataError> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| DataError::read(dir, error))?;
        if entry.path().is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// Lines of the file by their name, with the number of the speaker; lines of others are left out, and so is a name that is
/// none of a file. Empty where there is no such file.
fn speakers(file: &Path) -> Result<BTreeMap<String, usize>, DataError> {
    if !file.is_file() {
        return Ok(BTreeMap::new());
    }
    let bytes = fs::read(file).map_err(|error| DataError::read(file, error))?;
    let text = String::from_utf8_lossy(&bytes);
    let line = |line: &str| {
        let mut quoted = line.trim_start().strip_prefix("dialogId(")?.split('"');
        let (id, font) = (quoted.nth(1)?, quoted.nth(1)?);
        let speaker = FONTS.iter().position(|known| *known == font)?;
        let is_name =
            !id.is_empty() && id.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter));
        is_name.then(|| (id.to_owned(), speaker))
    };
    Ok(text.lines().filter_map(line).collect())
}
