//! Samples: files, lengths, what is set aside.

use serde_json::{Value, json};

use crate::config::import::sheet::Sheet;
use crate::config::import::trainer::READ_AHEAD;

/// Translates the options that name data, its phase and its lengths.
pub(super) fn read(sheet: &mut Sheet) {
    let is_sft = phase(sheet);
    sets(sheet);
    lengths(sheet, is_sft);
    split(sheet);
    if sheet.number("num_images_expected").is_some() {
        sheet.copy("num_images_expected", "data.pack.max_images");
    }
    always(sheet);
    sheet.settled(
        "the chat template is that of the model's folder; data.template has built-in ones",
        &["chat_template", "chat_template_kwargs"],
    );
    let of_ends = match is_sft {
        true => "only answers count in the loss of train.phase sft",
        false => "no token is predicted from the end of another document",
    };
    sheet.settled(of_ends, &["eod_mask_loss"]);
    sheet.missing("train.phase: pretrain counts every token", &["train_on_prompt", "add_question_in_pretrain"]);
    sheet.missing(
        "name files and columns in data.train",
        &["sft_dataset_config", "sft_dataset", "prompt_path", "dataset_strategy", "dataset_provider"],
    );
    sheet.missing("use `loongforge data pack` to tokenize in advance", &["is_tokenized_data", "sft_data_streaming"]);
    sheet.missing("name files of samples in data.train", &["mock_data"]);
    sheet.missing("set `policy`: LeRobot's info.json describes the robot", &["robot_type"]);
}

/// Translates the phase, and returns whether it is `sft`.
fn phase(sheet: &mut Sheet) -> bool {
    // A phase is LoongForge's, whose data are files of samples; Megatron's are tokens that its own program has written.
    let phase = sheet.get("training_phase").and_then(Value::as_str).unwrap_or("pretrain").to_owned();
    let phase = if sheet.is_true("sft") { "sft".to_owned() } else { phase };
    let is_sft = phase == "sft";
    let of_samples = is_sft || sheet.is("dataloader_type", "external");
    if sheet.get("dataset_format").is_none() {
        sheet.set("train.phase", if is_sft { "sft" } else { "pretrain" });
        // Sequences are full, and a step counts them.
        if !of_samples || sheet.is_true("packing_sft_data") {
            sheet.set("data.pack.mode", "stream");
        }
    }
    ["training_phase", "sft"].iter().for_each(|key| sheet.arrived(key, "train.phase"));
    is_sft
}

/// Translates the options that name files.
fn sets(sheet: &mut Sheet) {
    for key in ["data_path", "train_data_path"] {
        sheet.with(key, "data.train", files);
    }
    sheet.with("dataset_path", "data.train", |value| Ok(json!([{ "path": value }])));
    sheet.missing("name the files for evaluation in eval.path", &["valid_data_path", "test_data_path"]);
    if sheet.is("dataset_format", "lerobot_datasets") {
        sheet.settled("LeRobot sets are detected by their files", &["dataset_format"]);
    }
}

/// Translates how long packs are, and what becomes of samples that are longer.
fn lengths(sheet: &mut Sheet, is_sft: bool) {
    let key = if sheet.get("max_packed_tokens").is_some() { "max_packed_tokens" } else { "seq_length" };
    sheet.copy(key, "data.pack.max_tokens");
    sheet.settled(
        "data.pack.max_tokens bounds a pack",
        &[
            "seq_length",
            "decoder_seq_length",
            "encoder_seq_length",
            "dataloader_seq_length",
            "packing_seq_length",
            "total_seq_length",
        ],
    );
    if sheet.is_true("enable_discard_sample") {
        sheet.set("data.pack.too_long", "skip");
    } else if is_sft {
        sheet.set("data.pack.too_long", "truncate");
    }
    sheet.arrived("enable_discard_sample", "data.pack.too_long");
}

/// Settles how samples are packed and read, of which there is one way.
fn always(sheet: &mut Sheet) {
    sheet.settled(
        "samples are always packed, and never attend to each other",
        &[
            "energon_pack_algo",
            "max_buffer_size",
            "packing_buffer_size",
            "packing_sft_data",
            "replacement",
            "reset_attention_mask",
            "reset_position_ids",
            "use_packed_ds",
            "variable_seq_lengths",
            "reduce_variable_seq_shape_p2p_comm",
            "strict_mode",
        ],
    );
    sheet.settled("sample counts are cached in the user's cache folder, or in data.index_dir", &["data_cache_path"]);
    sheet.settled(
        READ_AHEAD,
        &[
            "batch_drop_last",
            "dataloader_prefetch_factor",
            "dataloader_save",
            "dataloader_type",
            "no_create_attention_mask_in_dataloader",
            "no_mmap_bin_files",
            "num_workers",
            "per_split_data_args_path",
            "sft_num_preprocess_workers",
            "task_encoder",
            "video_backend",
        ],
    );
}

/// Returns a path, or weights and paths in turns; prefixes of `.bin` and `.idx` files are taken as they are.
fn files(value: &Value) -> Result<Value, &'static str> {
    let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let sets: Option<Vec<(Option<f64>, String)>> = match list.first().is_some_and(Value::is_number) {
        true => list.chunks(2).map(|two| Some((two[0].as_f64(), two.get(1).and_then(text)?))).collect(),
        false => list.iter().map(|path| Some((None, text(path)?))).collect(),
    };
    let sets = sets.ok_or("it must be a list of paths")?;
    let set = |(weight, path): &(Option<f64>, String)| match weight {
        Some(weight) => json!({ "path": path, "weight": weight }),
        None => json!({ "path": path }),
    };
    Ok(sets.iter().map(set).collect())
}

/// Parts for training, validation and test.
fn split(sheet: &mut Sheet) {
    let parts: Option<Vec<f64>> = match sheet.get("split") {
        Some(Value::String(text)) => text
            .trim_matches(['\'', '"'])
            .split(',')
            .map(|part| part.trim().parse().ok().filter(|it: &f64| *it >= 0.0))
            .collect(),
        _ => None,
    };
    let Some(parts) = parts else {
        return sheet.missing(
            "set data.val_size, the fraction of samples to evaluate",
            &["split", "eval_interval", "eval_iters"],
        );
    };
    let (sum, valid) = (parts.iter().sum::<f64>(), parts.get(1).copied().unwrap_or(0.0));
    if valid == 0.0 || sum == 0.0 {
        sheet.settled("no samples are set aside", &["split"]);
        sheet.settled(
            "no samples are set aside for evaluation; eval.path names a file",
            &["eval_interval", "eval_iters"],
        );
        return;
    }
    let share = (valid / sum * 1e9).round() / 1e9;
    sheet.with("split", "data.val_size", |_| Ok(share.into()));
    sheet.set("eval.every_steps", 1000);
    sheet.copy("eval_interval", "eval.every_steps");
    let samples = sheet.number("eval_iters").zip(sheet.number("global_batch_size"));
    let samples = samples.map(|(steps, size)| (steps * size) as u64).filter(|samples| *samples > 0);
    sheet.with("eval_iters", "eval.max_samples", |_| {
        samples.map(Value::from).ok_or("set eval.max_samples, which counts samples")
    });
}
