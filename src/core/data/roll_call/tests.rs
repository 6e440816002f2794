use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::{RollCall, compose};
use crate::config::AudioLimits;
use crate::data::audio::{Segment, decode_sound, wav};

const SETTINGS: RollCall = RollCall { seed: 3, num_train: 12, num_held_out: 9 };

/// Returns a tone as a WAV file: the reader goes by what is in a file.
fn tone(pitch: f32, seconds: f32) -> Vec<u8> {
    tone_at(8_000, pitch, seconds)
}

fn tone_at(rate: u32, pitch: f32, seconds: f32) -> Vec<u8> {
    let turn = std::f32::consts::TAU * pitch / rate as f32;
    let sine: Vec<f32> = (0..(seconds * rate as f32) as usize).map(|at| 0.5 * (turn * at as f32).sin()).collect();
    wav(&sine, 1, rate)
}

/// Makes a folder with the packages' layout: eight levels, where each fish says a line in each language at a pitch of its own, a snail
/// says one more, and there are lines that no reader can use.
fn game(root: &Path, languages: &[&str]) {
    let game = root.join("usr/share/games/fillets-ng");
    for level in 0..8 {
        let script = game.join(format!("script/level{level}"));
        fs::create_dir_all(&script).unwrap();
        let lines = format!(
            "-- lines\ndialogId(\"l{level}-m-a\", \"font_small\", \"He said \\\"no\\\".\")\n\n\
             dialogId(\"l{level}-v-a\", \"font_big\", \"Yes.\")\n  dialogId(\"snail\", \"font_snail\", \"…\")\n\
             dialogId(\"../../v\", \"font_big\", \"\")\ndialogId(\"torn\", \"font_big\", \"\")\ndialogId(\"\n\
             dialogId(\"oh\", \"font_big\", \"Oh!\")\ndialogId(\"other_rate\", \"font_big\", \"Now.\")\n"
        );
        fs::write(script.join("dialogs_en.lua"), lines).unwrap();
        for language in languages {
            let sound = game.join(format!("sound/level{level}/{language}"));
            fs::create_dir_all(&sound).unwrap();
            let pitch = if *language == "cs" { 200.0 } else { 400.0 };
            fs::write(sound.join(format!("l{level}-m-a.ogg")), tone(pitch, 1.3)).unwrap();
            fs::write(sound.join(format!("l{level}-v-a.ogg")), tone(pitch + 100.0, 1.3)).unwrap();
            fs::write(sound.join("snail.ogg"), tone(pitch, 1.3)).unwrap();
            fs::write(sound.join("torn.ogg"), &tone(pitch, 1.3)[..3000]).unwrap();
            fs::write(sound.join("oh.ogg"), tone(pitch, 1.0)).unwrap();
            if level == 5 {
                // Somebody else, at another rate.
                fs::write(sound.join("other_rate.ogg"), tone_at(11_025, pitch, 1.3)).unwrap();
            }
        }
    }
    fs::create_dir_all(game.join("script/share")).unwrap();
}

/// Returns the voice of a second of sound, by its pitch.
fn voice(second: &[f32]) -> &'static str {
    let crossings = second.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
    ["mala", "velka", "kleine", "grote"][(crossings + 50) / 100 - 2]
}

fn lines(dir: &Path, name: &str) -> Vec<Json> {
    fs::read_to_string(dir.join(name)).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the recording, the question and the answer of a sample.
fn parts(sample: &Json) -> [String; 3] {
    let text = |turn: usize| sample["messages"][turn]["content"].as_str().unwrap().to_owned();
    [sample["audios"][0].as_str().unwrap().to_owned(), text(0), text(1)]
}

#[test]
fn voices_are_called_and_controls_ask_about_other_places_or_other_recordings() {
    let folder = tempfile::tempdir().unwrap();
    game(folder.path(), &["cs", "nl"]);
    let dir = folder.path().join("data");
    let mut heard = 0;
    let made = compose(&dir, folder.path(), &SETTINGS, |_| heard += 1).unwrap();
    assert_eq!((made.num_train, made.num_held_out), (36, 9));
    assert_eq!((made.num_levels, made.num_held_out_levels, made.num_clips), (8, 2, 32));
    assert_eq!((made.bad.len(), made.num_short, made.num_other_rate, heard), (16, 16, 2, 66), "{:?}", made.bad);

    let train = lines(&dir, "train.jsonl");
    let mut answers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for [file, question, answer] in train.iter().map(parts) {
        assert!(question.starts_with("<audio>Who speaks "));
        answers.entry(file).or_default().push(answer);
    }
    assert_eq!(answers.len(), 12);
    for names in answers.values() {
        assert!(names.len() == 3 && names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    }
    let (asked, old) = (lines(&dir, "held_out.jsonl"), lines(&dir, "old_answer.jsonl"));
    let shuffled = lines(&dir, "shuffled_sound.jsonl");
    for ((asked, old), shuffled) in asked.iter().zip(&old).zip(&shuffled) {
        let ([file, question, answer], [same, other, expected]) = (parts(asked), parts(old));
        assert!(file == same && question != other && answer == expected);
        assert_eq!(parts(shuffled)[1..], [question, answer]);
        assert_ne!(parts(shuffled)[0], file);
    }
    let limits = AudioLimits { min_seconds: 0.0, max_seconds: 3.0, max_tokens: None };
    for (file, names) in &answers {
        let sound = decode_sound(&fs::read(dir.join(file)).unwrap(), 16_000, &limits, Segment::WHOLE).unwrap();
        assert_eq!(sound.chunks(16_000).map(voice).collect::<Vec<_>>(), *names);
    }
    // A word is a token.
    let tokenizer: Json = serde_json::from_str(&fs::read_to_string(dir.join("model/tokenizer.json")).unwrap()).unwrap();
    let is_token = |word: &str| tokenizer["model"]["vocab"][word].is_u64();
    assert!(["mala", "velka", "kleine", "grote", "Who", "Ġspeaks", "Ġsecond"].into_iter().all(is_token));
    assert!(dir.join("model/config.json").exists() && dir.join("NOTICE").exists());

    let error = compose(&dir, folder.path(), &SETTINGS, |_| ()).unwrap_err().to_string();
    assert!(error.contains("new folder"), "{error}");
}

#[test]
fn packages_that_are_missing_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("data");
    let complaint = || compose(&out, folder.path(), &SETTINGS, |_| ()).unwrap_err().to_string();
    let error = complaint();
    assert!(
        error.contains("fillets-ng-data and fillets-ng-data-cs and fillets-ng-data-nl (GPL-2)")
            && error.contains("dpkg -x"),
        "{error}"
    );
    game(folder.path(), &["cs"]);
    let error = complaint();
    assert!(error.contains("packages fillets-ng-data-nl (GPL-2)"), "{error}");
    assert!(!out.exists(), "nothing is written");
}
