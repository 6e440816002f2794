//! Files of lines and of texts.

use super::*;

#[test]
fn every_layout_is_told_by_its_first_sample() {
    let folder = Folder::new();
    let sharegpt = json!([{"conversations": [{"from": "human", "value": "<image>a"}, {"from": "gpt", "value": "ok"}], "image": "p.jpg"}]);
    for (name, text, expected) in [
        ("m.jsonl", chat("a").to_string(), "user:a assistant:ok"),
        ("s.json", serde_json::to_string_pretty(&sharegpt).unwrap(), "user:a assistant:ok (p.jpg)"),
        ("a.jsonl", json!({"instruction": "a", "output": "ok"}).to_string(), "user:a assistant:ok"),
        ("t.jsonl", json!({"text": "a"}).to_string(), "a"),
        ("p.txt", "a\nb".to_owned(), "a"),
        ("e.jsonl", json!({"texts": [{"role": "user", "content": "a"}], "media": "text"}).to_string(), "user:a"),
        ("bad.jsonl", format!("no json\n{}", chat("a")), "bad 1"),
        (
            "i.jsonl",
            json!({"messages": [{"role": "user", "content": "<image>a"}], "image": "p.jpg", "system": "s"}).to_string(),
            "system:s user:a (p.jpg)",
        ),
        ("j.jsonl", json!({"messages": [{"role": "user", "content": "a"}], "image": "p.jpg"}).to_string(), "bad 1"),
        (
            "o.jsonl",
            json!({"messages": [{"role": "system", "content": "s"}, {"role": "human", "content": "a"},
                {"role": "gpt", "content": "ok"}]})
            .to_string(),
            "system:s user:a assistant:ok",
        ),
        (
            "k.jsonl",
            json!({"instruction": "a", "output": "ok", "image": "", "images": [], "audio": null}).to_string(),
            "user:a assistant:ok",
        ),
        // A field that the first record lacks does not hide what the others are.
        (
            "n.jsonl",
            "{\"instruction\": \"a\", \"output\": null}\n{\"instruction\": \"a\", \"output\": \"b\"}".to_owned(),
            "bad 1",
        ),
    ] {
        assert_eq!(shown(&of(folder.write(name, text)), 0), expected, "{name}");
    }
    let conversation = conversation(&of(folder.path("s.json")), 0);
    assert_eq!(conversation.media, [MediaSource::Image(Locator::File(folder.path("p.jpg")))]);
    // The text beside a picture is a caption, and not all that there is to learn.
    for (name, record, is_captioned) in [
        ("b.jsonl", json!({"image": "p.jpg", "text": "a"}), true),
        ("d.jsonl", json!({"file_name": "p.png", "text": "a"}), true),
        ("g.jsonl", json!({"file_name": "a.py", "text": "a"}), false),
        ("h.jsonl", json!({"image": "", "images": [], "video": null, "text": "a"}), false),
    ] {
        let file = folder.write(name, record.to_string());
        assert_eq!(of(&file).is_captioned(), is_captioned, "{name}");
        let texts = TrainFile { format: Format::Text, ..TrainFile::new(file) };
        assert_eq!(shown(&open(&texts).unwrap(), 0), "a", "{name}");
    }
    let pictures = TrainFile::new(folder.write("f.jsonl", json!({"images": ["p.jpg"], "text": "a"}).to_string()));
    let error = open(&pictures).err().unwrap().to_string();
    assert!(error.contains("f.jsonl: its first sample has text beside \"images\""), "{error}");
    let captioned = open(&TrainFile { format: Format::Captioned, ..pictures.clone() }).unwrap();
    let reason = captioned.read(0).unwrap_err().reason;
    assert!(reason.contains("`images` lists pictures or clips") && reason.contains("`image`"), "{reason}");
    assert_eq!(shown(&open(&TrainFile { format: Format::Text, ..pictures }).unwrap(), 0), "a");
    for (name, text, part) in [
        ("x.jsonl", "{\"question\": 1, \"picture\": 2}", "[\"question\", \"picture\"]"),
        ("y.jsonl", "[1, 2]", "its first sample is 1"),
        (
            "q.jsonl",
            "{\"instruction\": \"a\", \"output\": null}",
            "fields [\"instruction\"] and null under [\"output\"]",
        ),
        ("q.csv", "prompt;completion\na;b\n", "one name with ';' in it: commas separate the cells of .csv"),
        ("q.tsv", "prompt,completion\na,b\n", "one name with ',' in it"),
        (
            "k.csv",
            "prompt;completion\na, b;c\n",
            "k.csv:row 1: has 2 cells, but the first row names 1 columns; its first row",
        ),
        ("z.jsonl", "no json", "z.jsonl:1: not a sample"),
        ("s.jsonl", "\n{\n  \"instruction\": \"a\"\n}\n", "s.jsonl:2: not a sample: EOF while parsing"),
        ("r.json", "{'messages': []}", "write records with json.dumps"),
        ("w.jsonl", "\n", "no samples"),
        ("v.tar", "no tar", "not a tar archive"),
        ("u.parquet", "PAR1", "u.parquet"),
    ] {
        let error = open(&TrainFile::new(folder.write(name, text))).err().unwrap().to_string();
        assert!(error.contains(part) && error.contains(name), "{error}");
    }
    let columns = [("messages".to_owned(), "dialogue".to_owned()), ("images".to_owned(), "picture".to_owned())];
    let text = json!({"dialogue": [{"role": "user", "content": "<image>"}], "picture": "a.png"}).to_string();
    let file = TrainFile { columns: columns.into(), ..TrainFile::new(folder.write("c.jsonl", text)) };
    assert_eq!(shown(&open(&file).unwrap(), 0), "user: (a.png)");
    // Relative names start elsewhere; others are what they say.
    let elsewhere = |name: &str| TrainFile {
        media_dir: Some(folder.path("pictures")),
        ..TrainFile::new(folder.path(name).as_str())
    };
    let source = open(&elsewhere("s.json")).unwrap();
    assert_eq!(
        super::conversation(&source, 0).media,
        [MediaSource::Image(Locator::File(folder.path("pictures/p.jpg")))]
    );
    let error = open(&elsewhere("t.jsonl")).err().unwrap().to_string();
    assert!(error.contains("t.jsonl: has samples that name no files") && error.contains("`media_dir`"), "{error}");
    let file =
        TrainFile { episodes: Some(vec!["0-9".parse().unwrap()]), ..TrainFile::new(folder.path("m.jsonl").as_str()) };
    let error = open(&file).err().unwrap().to_string();
    assert!(error.contains("m.jsonl: is not a LeRobot set") && error.contains("`episodes` applies only"), "{error}");
}

#[test]
fn episodes_of_a_set_that_was_not_downloaded_are_missing_with_it() {
    let gone = TrainFile::new("hf://datasets/no-such-org/no-such-episodes");
    let chosen = TrainFile { episodes: Some(vec!["0-9".parse().unwrap()]), ..gone.clone() };
    for file in [chosen, TrainFile { format: Format::Lerobot, ..gone }] {
        let error = open(&file).err().unwrap().to_string();
        assert!(error.contains("no-such-episodes (main) is not in") && !error.contains("LeRobot"), "{error}");
    }
}

#[test]
fn boxes_that_are_to_be_filled_in_are_refused_in_pairs_and_labeled_answers_too() {
    let folder = Folder::new();
    let turns = |answer: &str| json!([{"role": "user", "content": "Where?"}, {"role": "assistant", "content": answer}]);
    let boxes = json!({"bbox": [[1, 2, 3, 4]]});
    for record in [
        json!({"messages": turns("<bbox>"), "objects": boxes}),
        json!({"messages": turns("<bbox>"), "objects": boxes, "label": true}),
        json!({"chosen": turns("no"), "rejected": turns("<bbox>"), "objects": boxes}),
    ] {
        let source = of(folder.write("o.jsonl", record.to_string()));
        let reason = source.read(0).unwrap_err().reason;
        assert!(reason.contains("<bbox> in its messages"), "{record}: {reason}");
    }
}

#[test]
fn pictures_without_a_caption_have_that_of_their_set() {
    let folder = Folder::new();
    folder.write("pictures/a.png", "a picture");
    folder.write("pictures/b.png", "a picture");
    folder.write("pictures/b.txt", "own");
    let lines = [json!({"image": "a.png"}), json!({"image": "b.png", "said": "own"})];
    folder.write("lines.jsonl", lines.map(|line| line.to_string()).join("\n"));
    let members: [(&str, &[u8]); 3] = [("a.png", b"a picture"), ("b.png", b"a picture"), ("b.txt", b"own")];
    folder.write("shard.tar", tar(&members));
    let columns = [("prompt".to_owned(), "said".to_owned())];
    let set = |name: &str| TrainFile {
        columns: columns.clone().into(),
        caption: Some("a sks dog".to_owned()),
        ..TrainFile::new(folder.path(name).as_str())
    };
    for name in ["pictures", "lines.jsonl", "shard.tar"] {
        let source = open(&set(name)).unwrap();
        let captions = |index| match source.read(index).unwrap() {
            Content::Captioned(captioned) => captioned.captions,
            other => panic!("{other:?}"),
        };
        assert_eq!([captions(0), captions(1)], [["a sks dog"], ["own"]], "{name}");
    }
    folder.write("chats.jsonl", chat("a").to_string());
    folder.write("speech/a.wav", "a recording");
    folder.write("speech/a.txt", "said");
    let messages = TrainFile { format: Format::Messages, ..set("lines.jsonl") };
    for other in [messages, set("chats.jsonl"), set("speech")] {
        let error = open(&other).err().unwrap().to_string();
        let reason = format!("{}: has no pictures or clips", other.name().display());
        assert!(error.contains(&reason) && error.contains("`caption`"), "{error}");
    }
}

#[test]
fn byte_order_marks_of_windows_are_no_part_of_captions() {
    let folder = Folder::new();
    folder.write("pictures/a.png", "a picture");
    folder.write("pictures/a.txt", "\u{feff}a red house\r\n");
    let members: [(&str, &[u8]); 2] = [("a.png", b"a picture"), ("a.txt", b"\xef\xbb\xbfa red house\r\n")];
    folder.write("shard.tar", tar(&members));
    for name in ["pictures", "shard.tar"] {
        let set = TrainFile { format: Format::Captioned, ..TrainFile::new(folder.path(name).as_str()) };
        match open(&set).unwrap().read(0).unwrap() {
            Content::Captioned(captioned) => assert_eq!(captioned.captions, ["a red house"], "{name}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lines_of_a_text_file_are_prompts_of_diffusion_models() {
    let folder = Folder::new();
    let text = "a red house\n\n a cat -- blue \r\n# the second part\na dog --w 640 --n bad\n  \n";
    let set = TrainFile { format: Format::Captioned, ..TrainFile::new(folder.write("prompts.txt", text)) };
    let source = open(&set).unwrap();
    let prompt = |index| match source.read(index) {
        Ok(Content::Captioned(captioned)) => Ok(captioned.captions),
        Ok(other) => panic!("{other:?}"),
        Err(bad) => Err(bad.reason),
    };
    assert_eq!(prompt(0).unwrap(), ["a red house"]);
    assert_eq!(prompt(1).unwrap(), ["a cat -- blue"]);
    assert!(prompt(2).unwrap_err().contains("is a comment"));
    assert!(prompt(3).unwrap_err().contains("such as --w, are not read"));
    assert!(prompt(4).unwrap_err().contains("has white space alone"));
}

#[test]
fn conversations_without_a_system_message_have_that_of_their_set() {
    let folder = Folder::new();
    let turns = |first: &str| {
        let turns = [("system", first), ("user", "a"), ("assistant", "ok")];
        let turns = turns.map(|(role, content)| json!({"role": role, "content": content}));
        json!(turns[usize::from(first.is_empty())..])
    };
    let set = |record: Json| TrainFile {
        system: Some("Be brief.".to_owned()),
        ..TrainFile::new(folder.write("s.jsonl", record.to_string()))
    };
    let said = |record: Json| match open(&set(record)).unwrap().read(0).unwrap() {
        Content::Messages(conversation) => vec![conversation],
        Content::Pair(pair) => vec![pair.chosen, pair.rejected],
        Content::Labeled(answer) => vec![answer.conversation],
        other => panic!("{other:?}"),
    };
    for (own, text) in [("", "Be brief."), ("Be kind.", "Be kind.")] {
        for record in [
            json!({ "messages": turns(own) }),
            json!({ "chosen": turns(own), "rejected": turns(own) }),
            json!({ "messages": turns(own), "label": true }),
            json!({ "instruction": "a", "output": "ok", "system": own }),
        ] {
            for conversation in said(record) {
                let first = &conversation.turns[0];
                assert_eq!((first.role.as_str(), first.joined_text().as_str()), ("system", text));
                assert_eq!((conversation.turns.len(), first.is_default), (3, own.is_empty()));
            }
        }
    }
    let tools = said(json!({"messages": turns(""), "tools": [{"name": "f"}]})).remove(0);
    assert_eq!((tools.turns[0].tools.len(), tools.turns[1].tools.len()), (1, 0), "as in a record that has the message");
    let error = open(&set(json!({"text": "a"}))).err().unwrap().to_string();
    assert!(error.contains("s.jsonl: has no conversations") && error.contains("`system`"), "{error}");
}

#[test]
fn long_texts_are_cut_and_nothing_is_lost() {
    let folder = Folder::new();
    let long = "one two three four five sechs sieben ächtzehn ".repeat(9);
    let json = json!({"text": format!("{long}\n\"end\"")}).to_string();
    let plain = format!("short\n\n{long}\nlast");
    for (name, text) in [("a.txt", plain.as_str()), ("a.jsonl", json.as_str())] {
        let file = TrainFile::new(folder.write(name, text));
        // Two bytes a token, at most.
        let source = Source::open(&file, Phase::Pretrain, 32, |text| text.len().div_ceil(2)).unwrap();
        let mut documents = vec![String::new()];
        for index in 0..source.len() {
            let Content::Text(piece) = source.read(index).unwrap() else { panic!("a text") };
            assert!(piece.text.len() <= 54 && piece.begins == documents.last().unwrap().is_empty());
            documents.last_mut().unwrap().push_str(&piece.text);
            if piece.ends {
                documents.push(String::new());
            }
        }
        assert!(source.len() > 5);
        let expected = match name {
            "a.txt" => vec!["short".to_owned(), long.clone(), "last".to_owned(), String::new()],
            _ => vec![format!("{long}\n\"end\""), String::new()],
        };
        assert_eq!(documents, expected);
        assert_eq!(source.bad(source.len() - 1, String::new()).at, if name == "a.txt" { "4" } else { "1" });
    }
    of_their_own_length(&folder);
    let source = of(folder.write("e.jsonl", "{\"text\": \"\"}\n{\"text\": 1}\n{\"a\": 1}"));
    assert_eq!(source.read(0).unwrap_err().reason, "not a sample: the text is empty");
    assert!((1..3).all(|index| source.read(index).unwrap_err().reason.contains("`text`")));
    let sft = |file: &TrainFile| Source::open(file, Phase::Sft, 9, str::len).err().unwrap().to_string();
    let error = sft(&TrainFile { format: Format::Plain, ..TrainFile::new("a.txt") });
    assert!(error.contains("train.phase") && error.contains("a.txt"), "{error}");
    assert!(sft(&TrainFile::new(folder.path("e.jsonl").as_str())).contains("train.phase"));
}

#[test]
fn records_that_are_read_as_lines_are_told() {
    let folder = Folder::new();
    let json = folder.write("a.jsonl", "{\"text\": \"one\"}\n");
    let text = folder.write("a.txt", "{\"text\": \"one\"}\n");
    let said = |path: &Path, format| {
        let source = open(&TrainFile { format, ..TrainFile::new(path) }).unwrap();
        (shown(&source, 0), Source::left_out(&[source]).concat())
    };
    let (learned, told) = said(&json, Format::Plain);
    assert_eq!(learned, "{\"text\": \"one\"}");
    assert!(told.contains("a.jsonl: with `format: plain`") && told.contains("`format: text`"), "{told}");
    assert_eq!(said(&json, Format::Text), ("one".to_owned(), String::new()));
    assert_eq!(said(&text, Format::Plain).1, "");
    for name in ["README.md", "main.rs", "LICENSE"] {
        assert_eq!(said(&folder.write(name, "one\n"), Format::Plain).1, "", "{name}");
    }
}

/// Escapes and other fields make a record longer, and not its text.
fn of_their_own_length(folder: &Folder) {
    let long = "long ".repeat(20);
    let line = |text: &str| {
        let escaped: String = text
            .chars()
            .map(|letter| if letter.is_ascii() { letter.to_string() } else { format!("\\u{:04x}", letter as u32) })
            .collect();
        let other = "x".repeat(200);
        format!("{{\"meta\": {{\"text\": \"{other}\"}}, \"text\": \"{escaped}\", \"url\": \"{other}\"}}\n")
    };
    let texts = ["короткий текст", "short", long.as_str()];
    let lines = texts.map(line);
    let rows = texts.map(|text| format!("{},{text},{}\n", "x".repeat(200), "x".repeat(200)));
    let members = [0, 1, 2].map(|at| (["0.json", "1.json", "2.json"][at], lines[at].as_bytes()));
    for (name, body) in [
        ("l.jsonl", lines.concat().into_bytes()),
        ("l.json", format!("[{}]", lines.join(",")).into_bytes()),
        ("l.csv", format!("meta,text,url\n{}", rows.concat()).into_bytes()),
        ("l.tar", tar(&members)),
    ] {
        let file = TrainFile::new(folder.write(name, body));
        let source = Source::open(&file, Phase::Pretrain, 32, |text| text.len().div_ceil(2)).unwrap();
        let pieces: Vec<String> = (0..source.len()).map(|index| shown(&source, index)).collect();
        assert_eq!((pieces.len(), pieces[..2].join(" ").as_str()), (5, "короткий текст short"));
        assert_eq!(pieces[2..].concat(), long);
    }
}

#[test]
fn a_table_without_a_row_of_names_is_told_to_lack_it() {
    let folder = Folder::new();
    let path = folder.write("t.tsv", "clips/a.WAV\tyes\nclips/b.wav\tno\n");
    let error = open(&TrainFile::new(path.as_path())).err().unwrap().to_string();
    assert!(error.contains("\"clips/a.WAV\" reads like a file: write a row of names before it"), "{error}");
    // A column may be called so.
    let path = folder.write("n.tsv", "a.wav\ttext\tcover.png\nb.wav\tyes\tb.png\n");
    let columns = [("audio".to_owned(), "a.wav".to_owned())].into();
    let named = open(&TrainFile { columns, ..TrainFile::new(path.as_path()) }).unwrap();
    assert_eq!((named.len(), named.format()), (1, "transcripts"));
}

#[test]
fn a_field_counts_under_the_name_that_columns_give_it() {
    let folder = Folder::new();
    let text = json!({"messages": [{"role": "user", "content": "a"}], "answer": "b"}).to_string();
    let path = folder.write("a.jsonl", text);
    let columns = [("prompt", "messages"), ("completion", "answer")];
    let columns = columns.map(|(name, theirs)| (name.to_owned(), theirs.to_owned())).into();
    let named = open(&TrainFile { columns, ..TrainFile::new(path.as_path()) }).unwrap();
    assert_eq!((named.format(), shown(&named, 0).as_str()), ("alpaca", "user:a assistant:b"));
}

#[test]
fn pairs_of_ms_swift_are_told_from_conversations() {
    let folder = Folder::new();
    let mut record = chat("a");
    record["rejected_response"] = "no".into();
    let path = folder.write("p.jsonl", record.to_string());
    assert_eq!(of(&path).format(), "pairs");
    let talk = TrainFile { format: Format::Messages, ..TrainFile::new(path.as_path()) };
    assert_eq!(shown(&open(&talk).unwrap(), 0), "user:a assistant:ok");
}
