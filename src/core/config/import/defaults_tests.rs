//! Checks that a run trains as the original does where a key is absent or depends on another one.

use super::tests::{json_of, missing, settled};
use super::*;
use serde_json::json;

pub(super) const FACTORY: &str = "model_name_or_path: a/b\nstage: sft\n";
pub(super) const TRL: &str = "model_name_or_path: a/b\ndataset_name: x/y\n";
pub(super) const AXOLOTL: &str = "base_model: a/b\ndatasets: [{path: x/y, type: alpaca}]\nlearning_rate: 1e-4\n";

pub(super) fn says(imported: &Imported, part: &str) -> bool {
    imported.notes.iter().any(|note| note.contains(part))
}

/// transformers' `constant` ignores the warm-up that many configs have beside it.
#[test]
fn a_constant_rate_has_no_warm_up() {
    for (text, key) in [(FACTORY, "lr_scheduler_type"), (TRL, "lr_scheduler_type"), (AXOLOTL, "lr_scheduler")] {
        let of = |schedule: &str, warmup: &str| import(&format!("{text}{key}: {schedule}\n{warmup}")).unwrap();
        for warmup in ["warmup_ratio", "warmup_steps"] {
            let imported = of("constant", &format!("{warmup}: 0.03\n"));
            let train = &json_of(&imported)["train"];
            assert_eq!((&train["schedule"], &train["warmup_ratio"]), (&json!("constant"), &json!(null)), "{text}");
            assert_eq!((&train["warmup_steps"], settled(&imported).contains(&warmup)), (&json!(null), true), "{text}");
        }
        let train = &json_of(&of("constant_with_warmup", "warmup_ratio: 0.03\n"))["train"];
        assert_eq!((&train["schedule"], &train["warmup_ratio"]), (&json!("constant"), &json!(0.03)), "{text}");
    }
}

#[test]
fn options_of_a_stable_schedule_arrive() {
    let of = |options: &str| {
        let lines = format!("lr_scheduler_type: warmup_stable_decay\nlearning_rate: 2.0e-4\n{options}");
        let imported = import(&format!("{TRL}{lines}")).unwrap();
        let (train, told) = (json_of(&imported)["train"].clone(), says(&imported, "half a cosine"));
        let is_missing = missing(&imported).contains(&"lr_scheduler_kwargs");
        (train["schedule"].clone(), train["decay_steps"].clone(), train["min_lr"].as_f64(), told, is_missing)
    };
    let linear = of("lr_scheduler_kwargs: {num_decay_steps: 30, min_lr_ratio: 0.5, decay_type: linear}\n");
    assert_eq!(linear, (json!("wsd"), json!(30), Some(1e-4), false, false));
    let cosine = of("lr_scheduler_kwargs: '{\"num_decay_steps\": 30}'\n");
    assert_eq!(cosine, (json!("wsd"), json!(30), None, true, false));
    let agreed = of("lr_scheduler_kwargs: {decay_type: linear}\n");
    assert_eq!(agreed, (json!("wsd"), json!(null), None, false, false));
    let other = of("lr_scheduler_kwargs: {num_decay_steps: 30, num_stable_steps: 9}\n");
    assert_eq!(other, (json!("wsd"), json!(null), None, true, true));
    let stable = "lr_scheduler_type: warmup_stable_decay\n";
    assert!(says(&import(&format!("{FACTORY}{stable}")).unwrap(), "two thirds"));
}

/// axolotl's lowest rate is one of its cosine alone.
#[test]
fn a_lowest_rate_of_a_cosine_is_none_of_a_line() {
    let of = |schedule: &str| {
        let imported = import(&format!("{AXOLOTL}cosine_min_lr_ratio: 0.1\n{schedule}")).unwrap();
        json_of(&imported)["train"]["min_lr"].is_number()
    };
    assert_eq!([of(""), of("lr_scheduler: cosine\n"), of("lr_scheduler: linear\n")], [true, true, false]);
}

/// Beta, margin and weight of the likelihood are others in TRL, to which axolotl leaves them, and in LLaMA-Factory.
#[test]
fn simpo_has_the_strength_that_it_has_there() {
    let of = |text: String| json_of(&import(&text).unwrap())["train"]["preference"].clone();
    let factory = FACTORY.replace("sft", "dpo") + "pref_loss: simpo\n";
    assert_eq!(of(factory.clone()), json!({ "loss": "simpo", "beta": 0.1, "gamma": 0.5 }));
    let own = json!({ "loss": "simpo", "beta": 2.5, "gamma": 1.25, "nll_weight": 0.5 });
    assert_eq!(of(factory + "pref_beta: 2.5\nsimpo_gamma: 1.25\npref_ftx: 0.5\n"), own);
    let trl = "trl cpo --model_name_or_path a/b --dataset_name x/y --loss_type simpo".to_owned();
    let by_default = json!({ "loss": "simpo", "beta": 0.1, "gamma": 0.5, "nll_weight": 1.0 });
    assert_eq!((of(trl.clone()), of(format!("{AXOLOTL}rl: simpo\n"))), (by_default.clone(), by_default));
    assert_eq!(of(trl + " --beta 2.5 --simpo_gamma 1.25 --cpo_alpha 0.5"), own);
    let lines = "rl: simpo\nrl_beta: 2.5\nsimpo_gamma: 1.25\ncpo_alpha: 0.5\n";
    assert_eq!(of(format!("{AXOLOTL}{lines}")), own);
}

/// A key that is left over of another method turns none on, and none that the loss refuses arrives.
#[test]
fn keys_of_another_method_are_left_out() {
    let rest = "rl_beta: 0.2\nsimpo_gamma: 0.7\ndpo_label_smoothing: 0.1\nkto_desirable_weight: 0.5\ncpo_alpha: 1\n";
    let of = |rl: &str| {
        let imported = import(&format!("{AXOLOTL}{rl}{rest}")).unwrap();
        assert_eq!(missing(&imported), [""; 0], "{rl}");
        json_of(&imported)["train"]["preference"].clone()
    };
    assert_eq!(of(""), json!(null));
    assert_eq!(of("rl: ipo\n"), json!({ "loss": "ipo", "beta": 0.2 }));
    assert_eq!(of("rl: dpo\norpo_alpha: 0.3\n"), json!({ "loss": "sigmoid", "beta": 0.2, "label_smoothing": 0.1 }));
    assert_eq!(of("rl: ipo\ntrl: {beta: 0.4}\n"), json!({ "loss": "ipo", "beta": 0.4 }));
    let factory = |lines: &str| {
        let text = FACTORY.replace("sft", "dpo") + lines;
        json_of(&import(&text).unwrap())["train"]["preference"].clone()
    };
    let all = "simpo_gamma: 0.7\ndpo_label_smoothing: 0.1\n";
    assert_eq!(factory(&format!("pref_loss: hinge\n{all}")), json!({ "loss": "hinge" }));
    let orpo = format!("pref_loss: orpo\npref_ftx: 0.5\n{all}");
    assert_eq!(factory(&orpo), json!({ "loss": "orpo", "nll_weight": 1.5 }));
    assert_eq!(factory("pref_loss: orpo\npref_ftx: 0.0\n"), json!({ "loss": "orpo", "nll_weight": 1.0 }));
}

#[test]
fn axolotls_warm_up_and_length_are_written() {
    let of = |lines: &str| {
        let imported = import(&format!("{AXOLOTL}{lines}")).unwrap();
        let (train, tokens) =
            (json_of(&imported)["train"].clone(), json_of(&imported)["data"]["pack"]["max_tokens"].clone());
        (train["warmup_steps"].clone(), train["warmup_ratio"].clone(), tokens, says(&imported, "3,333"))
    };
    let null = || json!(null);
    assert_eq!(of(""), (null(), json!(0.03), json!(512), true));
    assert_eq!(of("max_steps: 1000\nsequence_len: 64\n"), (json!(30), null(), json!(64), false));
    assert_eq!(of("max_steps: 90000\n"), (json!(100), null(), json!(512), false));
    assert_eq!(of("warmup_steps: 0\n"), (json!(0), null(), json!(512), false));
    assert_eq!(of("warmup_ratio: 0.1\n"), (null(), json!(0.1), json!(512), false));
}

/// PEFT's default is no `all-linear`, which ours is.
#[test]
fn adapters_are_on_the_modules_that_have_them_there() {
    let of = |text: String| json_of(&import(&text).unwrap())["model"]["foundation"]["lora"]["target_modules"].clone();
    assert_eq!(of(format!("{TRL}use_peft: true\n")), json!(["q_proj", "v_proj"]));
    assert_eq!(of(format!("{TRL}use_peft: true\nlora_target_modules: all-linear\n")), json!(null));
    assert_eq!(of(format!("{TRL}use_peft: true\nlora_target_modules: [k_proj]\n")), json!(["k_proj"]));
    let experts = format!("{TRL}use_peft: true\nlora_target_parameters: [experts.down_proj]\n");
    let lora = json_of(&import(&experts).unwrap())["model"]["foundation"]["lora"].clone();
    assert_eq!(lora["target_parameters"], json!(["experts.down_proj"]));
    let axolotl = format!("{AXOLOTL}adapter: lora\nlora_target_linear: true\n");
    assert_eq!(of(axolotl.clone()), json!(null));
    assert_eq!(of(axolotl + "lora_target_modules: [lm_head]\n"), json!(["all-linear", "lm_head"]));
}

/// A key that shuffles a data set before a run does not set the order in a run, which a sampler draws.
#[test]
fn samples_have_the_order_that_they_have_there() {
    let of = |text: String| {
        let imported = import(&text).unwrap();
        assert_eq!(missing(&imported), [""; 0], "{text}");
        json_of(&imported)["data"]["shuffle"].clone()
    };
    let (null, off) = (json!(null), json!(false));
    assert_eq!(of(format!("{TRL}shuffle_dataset: false\n")), null);
    assert_eq!(of(format!("{TRL}train_sampling_strategy: sequential\n")), off);
    assert_eq!(of(format!("{TRL}desirable_weight: 1.0\n")), off, "kto");
    assert_eq!(of(format!("{TRL}desirable_weight: 1.0\ntrain_sampling_strategy: random\n")), json!(true));
    assert_eq!(of(format!("{FACTORY}disable_shuffling: true\n")), off);
    assert_eq!(of(format!("{FACTORY}disable_shuffling: false\n")), null);
    assert_eq!(of(format!("{AXOLOTL}shuffle_merged_datasets: false\n")), null);
    assert_eq!(of(format!("{AXOLOTL}curriculum_sampling: true\nshuffle_merged_datasets: true\n")), off);
    let streamed = "base_model: a/b\npretraining_dataset: {path: x/y, type: pretrain}\nmax_steps: 5\n";
    assert_eq!(of(format!("{streamed}shuffle_merged_datasets: false\n")), off);
}

#[test]
fn pictures_are_reduced_as_llama_factory_reduces_them() {
    let of = |lines: &str| import(&format!("stage: sft\ndataset: a\n{lines}")).unwrap();
    let earlier = json_of(&of("model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\n"))["data"].clone();
    assert_eq!(earlier["image"], json!({ "max_pixels": 589_824 }));
    assert_eq!(earlier["video"], json!({ "max_pixels": 65_536, "max_frames": 128, "fps": 2.0 }));
    let later = of("model_name_or_path: Qwen/Qwen3-VL-8B-Instruct\nimage_max_pixels: 50176\n");
    assert_eq!(json_of(&later)["data"]["image"], json!({ "max_pixels": 50_176 }));
    assert_eq!(json_of(&later)["data"]["video"], json!({ "max_frames": 128, "fps": 2.0 }));
    assert!(says(&later, "each frame"));
    // A model whose pictures have one size refuses a limit.
    for name in ["llava-hf/llava-1.5-7b-hf", "org/llava-qwen2-7b"] {
        let square = of(&format!("model_name_or_path: {name}\n"));
        assert!(json_of(&square)["data"]["image"].is_null() && says(&square, "589,824"), "{name}");
    }
    let text = of("model_name_or_path: Qwen/Qwen2.5-7B-Instruct\n");
    assert!(json_of(&text)["data"]["image"].is_null() && !says(&text, "589,824"));
}

#[test]
fn megatrons_dropout_and_its_wsd_are_told() {
    let of = |options: &str| import(&format!("torchrun pretrain_gpt.py --train-iters 9 {options}")).unwrap();
    let plain = of("--lr-decay-style cosine --lr-wsd-decay-iters 3");
    assert!(says(&plain, "dropout of 0.1") && json_of(&plain)["train"]["decay_steps"].is_null());
    assert!(!says(&of("--attention-dropout 0.0 --hidden-dropout 0"), "dropout of 0.1"));
    let wsd = of("--lr-decay-style WSD --global-batch-size 8 --lr-wsd-decay-samples 24");
    let train = &json_of(&wsd)["train"];
    assert_eq!((&train["schedule"], &train["decay_steps"]), (&json!("wsd"), &json!(3)));
    assert!(says(&wsd, "exponentially") && missing(&wsd).is_empty());
    let linear = of("--lr-decay-style WSD --lr-wsd-decay-iters 3 --lr-wsd-decay-style linear");
    assert!(!says(&linear, "exponentially") && missing(&linear).is_empty());
    let cosine = of("--lr-decay-style WSD --lr-wsd-decay-iters 3 --lr-wsd-decay-style cosine");
    assert_eq!(missing(&cosine), ["--lr-wsd-decay-style"]);
}

#[test]
fn the_loss_at_the_ends_of_megatrons_documents_has_the_reason_of_its_phase() {
    for (phase, part) in [("", "another document"), ("--sft", "only answers")] {
        let imported = import(&format!("torchrun pretrain_gpt.py --train-iters 9 --eod-mask-loss {phase}")).unwrap();
        let told = imported.keys.iter().find(|key| key.key == "--eod-mask-loss").unwrap();
        assert!(matches!(told.fate, Fate::Settled(why) if why.contains(part)), "{part}");
    }
}

/// Keys of adapters that are left over turn none on where all weights are trained, and an adapter that is continued has its own rank.
#[test]
fn keys_of_adapters_apply_to_new_ones_alone() {
    let keys = "lora_rank: 16\nlora_alpha: 16\nlora_dropout: 0.1\nlora_target: q_proj\nadditional_target: norm\n";
    let of = |text: &str, lines: &str| {
        let imported = import(&format!("{text}{lines}")).unwrap();
        assert_eq!(missing(&imported), [""; 0], "{lines}");
        json_of(&imported)["model"]["foundation"]["lora"].clone()
    };
    assert_eq!(of(FACTORY, &format!("finetuning_type: full\n{keys}")), json!(null));
    assert_eq!(of(FACTORY, &format!("finetuning_type: freeze\nfreeze_trainable_layers: -1\n{keys}")), json!(null));
    let own = json!({ "adapter": "some/adapter" });
    assert_eq!(of(FACTORY, &format!("adapter_name_or_path: some/adapter\n{keys}")), own);
    assert_eq!(of(AXOLOTL, "adapter: lora\nlora_r: 8\nlora_alpha: 4\nlora_model_dir: some/adapter\n"), own);
    assert_eq!(of(AXOLOTL, "lora_r: 8\nlora_model_dir: some/adapter\n"), json!(null));
    let merged = format!("{FACTORY}adapter_name_or_path: some/adapter\ncreate_new_adapter: true\n{keys}");
    let imported = import(&merged).unwrap();
    assert_eq!(missing(&imported), ["create_new_adapter"]);
    assert_eq!(json_of(&imported)["model"]["foundation"]["lora"]["r"], json!(16));
}

#[test]
fn a_mixtures_loss_of_balance_is_told() {
    let of = |name: &str, lines: &str| {
        let text = format!("model_name_or_path: {name}\ndataset_name: x/y\n{lines}");
        says(&import(&text).unwrap(), "load-balancing")
    };
    assert!(of("Qwen/Qwen3-30B-A3B", "") && of("mistralai/Mixtral-8x7B-v0.1", ""));
    assert!(!of("Qwen/Qwen3-8B", "") && !of("Qwen/Qwen3-30B-A3B", "router_aux_loss_coef: 0.0\n"));
}

#[test]
fn linear_layers_of_megatron_have_biases_unless_told_otherwise() {
    let of = |more: &str| {
        let sizes = "--num-layers 2 --hidden-size 64 --ffn-hidden-size 96 --num-attention-heads 4 --swiglu";
        let kind = "--normalization RMSNorm --position-embedding-type rope --vocab-size 320";
        json_of(&import(&format!("torchrun pretrain_gpt.py --train-iters 9 {sizes} {kind} {more}")).unwrap())
    };
    let config = of("")["model"]["config"].clone();
    assert_eq!((&config["attention_bias"], &config["mlp_bias"]), (&json!(true), &json!(true)));
    let plain = of("--disable-bias-linear")["model"]["config"].clone();
    assert!(plain["model_type"] == "llama" && plain["attention_bias"].is_null(), "{plain}");
    assert!(of("--num-experts 4")["model"].is_null());
    assert_eq!(of("--num-experts 4 --disable-bias-linear")["model"]["config"]["model_type"], json!("mixtral"));
}

#[test]
fn it_is_told_that_long_answers_are_skipped() {
    for (text, is_told) in [
        (FACTORY.replace("sft", "dpo"), true),
        (FACTORY.replace("sft", "kto"), true),
        (FACTORY.to_owned(), false),
        (format!("{TRL}beta: 0.1\n"), true),
        (TRL.to_owned(), false),
    ] {
        assert_eq!(says(&import(&text).unwrap(), "where the original truncates it"), is_told, "{text}");
    }
}

/// Without `--global-batch-size` a batch is that of a device times data parallelism.
#[test]
fn samples_of_megatron_are_steps_by_the_batch_of_all_devices() {
    let of = |options: &str| {
        let line = format!("torchrun --nproc_per_node 4 pretrain_gpt.py --train-samples 800 {options}");
        let imported = import(&line).unwrap();
        let train = json_of(&imported)["train"].clone();
        (train["steps"].clone(), train["warmup_steps"].clone(), missing(&imported).join(" "))
    };
    let own = "--micro-batch-size 2 --lr-warmup-samples 80";
    assert_eq!(of(own), (json!(100), json!(10), String::new()));
    assert_eq!(of(&format!("{own} --global-batch-size 16")), (json!(50), json!(5), String::new()));
    assert_eq!(of(""), (json!(null), json!(null), "--train-samples".to_owned()));
    let unknown = (json!(null), json!(null), "--lr-warmup-samples --train-samples".to_owned());
    assert_eq!(of("--lr-warmup-samples 80"), unknown, "80 samples are not 80 steps");
}

#[test]
fn held_out_files_have_the_folder_of_pictures_of_the_others() {
    let of = |lines: &str| {
        let imported = import(&format!("{FACTORY}dataset: a\nmedia_dir: pictures\n{lines}")).unwrap();
        json_of(&imported)["eval"]["media_dir"].clone()
    };
    assert_eq!((of("eval_dataset: b\n"), of("")), (json!("pictures"), json!(null)));
}

#[test]
fn held_out_files_have_the_names_of_fields_that_they_have_there() {
    let of = |text: &str| json_of(&import(text).unwrap())["eval"].clone();
    let held =
        of(&format!("{AXOLOTL}test_datasets: [{{path: ./h.jsonl, type: chat_template, field_messages: talk}}]\n"));
    assert_eq!((&held["path"], &held["columns"]), (&json!("./h.jsonl"), &json!({ "messages": "talk" })));
    assert!(of(&format!("{AXOLOTL}test_datasets: [{{path: ./h.jsonl}}]\n"))["columns"].is_null());
    let evaluated = "dataset_text_field: body\neval_strategy: steps\neval_steps: 5\n";
    assert_eq!(of(&format!("{TRL}{evaluated}"))["columns"], json!({ "text": "body" }));
    assert!(of(&format!("{TRL}dataset_text_field: body\n")).is_null());
}

#[test]
fn probabilities_of_data_sets_are_their_weights() {
    let of = |probabilities: &str| {
        let lines = format!("dataset: a,b\nmix_strategy: interleave_over\ninterleave_probs: {probabilities}\n");
        import(&format!("{FACTORY}{lines}")).unwrap()
    };
    let weighted = json!([{ "path": "data/a.json", "weight": 0.25 }, { "path": "data/b.json", "weight": 0.75 }]);
    for probabilities in ["0.25,0.75", "\"0.25, 0.75\"", "[0.25, 0.75]"] {
        let imported = of(probabilities);
        assert_eq!((&json_of(&imported)["data"]["train"], missing(&imported)), (&weighted, vec!["mix_strategy"]));
    }
    for wrong in ["0.25", "0.25,x,0.75", "0.25,2", "[0, 1]"] {
        assert_eq!(missing(&of(wrong)), ["interleave_probs", "mix_strategy"], "{wrong}");
    }
    let strategies = [("concat", json!("samples"), vec![]), ("interleave_under", json!(null), vec!["mix_strategy"])];
    for (strategy, mix, left) in strategies {
        let imported = import(&format!("{FACTORY}dataset: a,b\nmix_strategy: {strategy}\n")).unwrap();
        assert_eq!((&json_of(&imported)["data"]["mix"], missing(&imported)), (&mix, left), "{strategy}");
        let told = format!("{:?}", imported.keys);
        assert_eq!(told.contains("set train.steps to the smallest SAMPLES / PROBABILITY"), strategy != "concat");
    }
    let swift = "swift sft --model org/m --dataset a.jsonl b.jsonl --max_length 64 --interleave_prob 0.25 0.75";
    let imported = import(swift).unwrap();
    assert_eq!(json_of(&imported)["data"]["train"][1], json!({ "path": "b.jsonl", "weight": 0.75 }));
    assert!(missing(&imported).is_empty(), "{:?}", imported.keys);
}

#[test]
fn thoughts_and_uploads_of_llama_factory_are_accounted_for() {
    let of = |lines: &str| import(&format!("{FACTORY}{lines}")).unwrap();
    let off = "push_to_hub: false\npredict_with_generate: false\n";
    for (thinks, kwargs) in [(true, json!(null)), (false, json!({ "enable_thinking": false }))] {
        let imported = of(&format!("{off}enable_thinking: {thinks}\n"));
        assert_eq!(json_of(&imported)["data"]["template_kwargs"], kwargs);
        assert!(missing(&imported).is_empty(), "{:?}", imported.keys);
    }
    let others = of("default_system: Be brief.\nenable_thinking: perhaps\npush_to_hub: true\n");
    assert_eq!(missing(&others), ["enable_thinking", "push_to_hub"]);
    assert_eq!(json_of(&others)["data"]["system"], "Be brief.");
}

#[test]
fn templates_of_llama_factory_that_are_not_the_models_own_arrive_or_are_named() {
    for (name, ours, is_missing) in [
        ("qwen3", json!(null), false),
        ("qwen3_nothink", json!("chatml"), false),
        ("alpaca", json!(null), true),
        ("default", json!(null), true),
    ] {
        let imported = import(&format!("{FACTORY}template: {name}\n")).unwrap();
        assert_eq!(json_of(&imported)["data"]["template"], ours, "{name}");
        assert_eq!(missing(&imported).contains(&"template"), is_missing, "{name}");
    }
}

#[test]
fn limits_of_data_sets_and_system_messages_arrive() {
    let set = |text: &str| {
        let imported = import(text).unwrap();
        assert!(missing(&imported).is_empty(), "{:?}", imported.keys);
        json_of(&imported)["data"]["train"][0].clone()
    };
    let first = json!({ "path": "hf://datasets/x/y", "max_samples": 50 });
    assert_eq!(set(&format!("{TRL}dataset_train_split: 'train[:50]'\nmax_length: 64\n")), first);
    assert_eq!(set(&AXOLOTL.replace("type", "split: 'train[:50]', type")), first);
    assert_eq!(set(&format!("{FACTORY}dataset: a\nmax_samples: 50\n"))["max_samples"], 50);
    let of = |text: &str| import(text).unwrap();
    let swift = "swift sft --model org/m --max_length 64 --dataset 'a.jsonl#x' --val_dataset 'b.jsonl#5'";
    let imported = of(swift);
    assert_eq!(json_of(&imported)["data"]["train"], json!([{ "path": "a.jsonl" }]));
    assert_eq!(json_of(&imported)["eval"]["path"], "b.jsonl");
    for part in ["no number of samples", "eval.max_samples limits"] {
        assert!(says(&imported, part), "{part}: {:?}", imported.notes);
    }
    let held = of(&format!("{AXOLOTL}test_datasets: [{{path: x/y, split: 'test[:5]'}}]\n"));
    assert_eq!(missing(&held), ["test_datasets[0].split"]);
    assert_eq!(json_of(&held)["eval"]["path"], "hf://datasets/x/y/test");
    for wrong in ["max_samples: many\n", "dataset: a\nmax_samples: -1\n"] {
        assert_eq!(missing(&of(&format!("{FACTORY}{wrong}"))), ["max_samples"], "{wrong}");
    }
    let brief = of(&format!("{AXOLOTL}default_system_message: Be brief.\n"));
    assert_eq!((&json_of(&brief)["data"]["system"], missing(&brief)), (&json!("Be brief."), vec![]));
    assert_eq!(missing(&of("swift sft --model org/m --dataset a.jsonl --max_length 64 --system s.txt")), ["--system"]);
}

#[test]
fn llama_factorys_training_on_prompts_arrives_in_its_stage() {
    let of = |stage: &str, is_on: bool| {
        let lines = format!("model_name_or_path: a/b\nstage: {stage}\ndataset: a\ntrain_on_prompt: {is_on}\n");
        let imported = import(&lines).unwrap();
        assert!(missing(&imported).is_empty(), "{:?}", imported.keys);
        let is_settled = settled(&imported).contains(&"train_on_prompt");
        (json_of(&imported)["train"]["phase"].clone(), is_settled)
    };
    assert_eq!(of("sft", true), (json!("pretrain"), false));
    assert_eq!(of("sft", false), (json!(null), true));
    assert_eq!(of("dpo", true), (json!(null), true));
}

#[test]
fn how_llama_factory_works_needs_no_key() {
    let keys = "dataloader_pin_memory: true\ngroup_by_length: true\nddp_find_unused_parameters: false\ntorch_compile: true\n\
                tokenized_path: cache\nlogging_dir: logs\ncompute_accuracy: true\naverage_tokens_across_devices: true\n";
    let imported = import(&format!("{FACTORY}{keys}")).unwrap();
    assert!(missing(&imported).is_empty(), "{:?}", imported.keys);
}

#[test]
fn llama_factorys_patience_arrives() {
    let of = import(&format!("{FACTORY}eval_strategy: steps\neval_steps: 5\nearly_stopping_steps: 3\n")).unwrap();
    assert_eq!((&json_of(&of)["eval"], missing(&of)), (&json!({ "every_steps": 5, "patience": 3 }), vec![]));
}

#[test]
fn launchers_of_llama_factory_say_how_many_devices_there_are() {
    let options = "src/train.py --stage sft --model_name_or_path a/b --dataset a --per_device_train_batch_size 2";
    for launcher in ["torchrun --nproc_per_node 4 --nnodes 2", "deepspeed --num_gpus 4 --num_nodes 2"] {
        let imported = import(&format!("{launcher} {options}")).unwrap();
        let found = json_of(&imported);
        let counts = (&found["train"]["global_batch_size"], &found["pools"]["foundation"]["replicas"]);
        assert_eq!((counts, missing(&imported)), ((&json!(16), &json!(8)), vec![]), "{launcher}");
        let split = json_of(&import(&format!("{launcher} {options} --tensor_model_parallel_size 2")).unwrap());
        assert_eq!(split["train"]["global_batch_size"], json!(8), "{launcher}");
        assert_eq!(split["pools"]["foundation"], json!({ "replicas": 4, "tensor_parallel": 2 }), "{launcher}");
    }
}
