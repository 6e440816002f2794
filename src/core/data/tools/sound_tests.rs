//! The tools on recordings.

use std::fs;
use std::path::Path;

use super::record::members;
use super::*;
use crate::config::TrainFile;
use crate::data::audio::tests::sine;
use crate::data::audio::wav;
use crate::data::source::Content;
use crate::data::{InProcess, MediaSource};

/// Returns three conversations with a recording each; the second is no file of sound.
fn inputs(dir: &Path) -> Inputs {
    let line = |name: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":"<audio>?"}},{{"role":"assistant","content":"c"}}],"audios":["{name}"]}}"#
        )
    };
    fs::write(dir.join("a.wav"), wav(&sine(440.0, 8_000, 0.5), 1, 8_000)).unwrap();
    fs::write(dir.join("b.wav"), "no sound").unwrap();
    fs::write(dir.join("c.wav"), wav(&sine(440.0, 16_000, 0.25), 2, 16_000)).unwrap();
    fs::write(dir.join("train.jsonl"), ["a.wav", "b.wav", "c.wav"].map(line).join("\n")).unwrap();
    Inputs::open(vec![TrainFile::new(dir.join("train.jsonl"))]).unwrap()
}

#[test]
fn recordings_are_shown_counted_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = inputs(folder.path());
    let shown = show(&inputs, 0, None).unwrap();
    assert_eq!(shown.media[0].about, "PCM_S16LE, 8000 Hz, 1 channel, 0.50 s");
    assert_eq!(shown.turns[0].1, "<audio>?");
    assert!(page(&[], &[Ok(shown)]).contains("a.wav: PCM_S16LE, 8000 Hz"));
    assert!(show(&inputs, 1, None).unwrap_err().reason.contains("b.wav: not a supported audio file"));

    let stats = stats(&inputs, None, 1, |_, _| ());
    let sums: Vec<_> = stats.histograms.iter().map(|(name, histogram)| (*name, histogram.sum())).collect();
    assert_eq!(sums[4..], [("recordings", 2), ("milliseconds of sound", 625), ("contexts", 0)]);
    assert_eq!(stats.bad.len(), 1);

    let mut bad = Vec::new();
    let all = verify(&inputs, None, 1, |index, sample| {
        bad.extend(sample.map(|sample| (index, sample.reason)));
        Ok::<(), ()>(())
    });
    assert!(all.is_ok() && bad.len() == 1 && bad[0].0 == 1 && bad[0].1.contains("audio "), "{bad:?}");
}

#[test]
fn parts_of_recordings_are_shown_counted_verified_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    fs::write(dir.join("a.wav"), wav(&sine(440.0, 8_000, 2.0), 1, 8_000)).unwrap();
    let line =
        |offset: f64| format!(r#"{{"audio_filepath": "a.wav", "offset": {offset}, "duration": 0.5, "text": "yes"}}"#);
    fs::write(dir.join("manifest.jsonl"), [line(0.25), line(1.75)].join("\n")).unwrap();
    let inputs = Inputs::open(vec![TrainFile::new(dir.join("manifest.jsonl"))]).unwrap();
    let about = show(&inputs, 0, None).unwrap().media[0].about.clone();
    assert_eq!(about, "PCM_S16LE, 8000 Hz, 1 channel, 2.00 s, from 0.25 s to 0.75 s");
    let mut reasons = Vec::new();
    let all = verify(&inputs, None, 1, |_, sample| {
        reasons.extend(sample.map(|sample| sample.reason));
        Ok::<(), ()>(())
    });
    assert!(all.is_ok() && reasons.len() == 1, "{reasons:?}");
    assert!(reasons[0].contains("lasts 2.000 s, but its segment ends at 2.25 s"), "{reasons:?}");
    let stats = stats(&inputs, None, 1, |_, _| ());
    let sums: Vec<_> = stats.histograms.iter().map(|(name, histogram)| (*name, histogram.sum())).collect();
    assert_eq!(sums[4..], [("recordings", 2), ("milliseconds of sound", 750), ("contexts", 0)]);
    let out = dir.join("shards");
    convert(&inputs, &out, &Convert::default(), Share::WHOLE, 1, |_, _| ()).unwrap();
    let back = Inputs::open(vec![TrainFile::new(out.as_path())]).unwrap();
    for index in 0..2 {
        let segment = |inputs: &Inputs| {
            let (Content::Messages(conversation), _) = inputs.read(index).unwrap() else { panic!("a conversation") };
            let MediaSource::Audio(audio) = &conversation.media[0] else { panic!("a recording") };
            audio.segment
        };
        assert_eq!(segment(&back), segment(&inputs));
    }
}

#[test]
fn recordings_come_back_from_shards_with_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = inputs(folder.path());
    let out = folder.path().join("shards");
    for look in [Look::Header, Look::Whole] {
        let conversation = inputs.read(2).unwrap();
        assert!(members(&conversation.0, conversation.1, look, &InProcess).is_ok());
    }
    let done = convert(&inputs, &out, &Convert::default(), Share::WHOLE, 1, |_, _| ()).unwrap();
    assert_eq!((done.samples, done.bad.len()), (2, 1));
    let back = Inputs::open(vec![TrainFile::new(out.as_path())]).unwrap();
    for (index, name) in [(0, "a.wav"), (1, "c.wav")] {
        let (Content::Messages(conversation), base) = back.read(index).unwrap() else { panic!("a conversation") };
        let MediaSource::Audio(audio) = &conversation.media[0] else { panic!("a recording") };
        assert_eq!(audio.locator.read(base).unwrap()[..], fs::read(folder.path().join(name)).unwrap()[..]);
    }
}
