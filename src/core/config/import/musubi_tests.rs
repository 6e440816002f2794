//! Commands and data sets in the manner of musubi-tuner's documentation, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::{Area, load_text};
use serde_json::json;

const WAN: &str = r#"accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 src/musubi_tuner/wan_train_network.py \
  --task t2v-1.3B --dit models/wan2.1_t2v_1.3B_bf16.safetensors --t5 models/t5.pth \
  --dataset_config DIR/sets.toml --sdpa --mixed_precision bf16 --fp8_base \
  --optimizer_type adamw8bit --optimizer_args weight_decay=0.1 betas=0.9,0.99 --learning_rate 2e-4 \
  --gradient_checkpointing --max_data_loader_n_workers 2 --persistent_data_loader_workers \
  --network_module networks.lora_wan --network_dim 32 --network_args "loraplus_lr_ratio=4" "rank_dropout=0.1" \
  --timestep_sampling shift --discrete_flow_shift 3.0 --max_train_epochs 16 --save_every_n_epochs 1 --seed 42 \
  --output_dir out --output_name cats --wandb_api_key hush --some_new_option 3
"#;

const CLIPS: &str = r#"
[general]
resolution = [832, 480]
caption_extension = ".txt"
batch_size = 2
enable_bucket = true
bucket_no_upscale = true
some_key = 1

[[datasets]]
video_directory = "DIR/clips"
cache_directory = "DIR/cache"
num_repeats = 3
target_frames = [51]
frame_extraction = "head"
source_fps = 30.0
"#;

/// Writes a file of data sets, and returns their folder.
fn folder(sets: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    std::fs::write(dir.path().join("sets.toml"), sets.replace("DIR", &path)).unwrap();
    for name in ["clips", "pictures"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("clips/a.gif"), "").unwrap();
    std::fs::write(dir.path().join("list.jsonl"), "{\"image_path\": \"a.png\", \"caption\": \"x\"}\n").unwrap();
    dir
}

/// Translates a command in which `DIR` is a folder with these data sets.
fn of_sets(command: &str, sets: &str) -> (Imported, String) {
    let dir = folder(sets);
    let path = dir.path().display().to_string();
    (import(&command.replace("DIR", &path)).unwrap(), path)
}

/// Translates a command for Wan with these options, whose data sets are not here.
fn of(options: &str) -> Imported {
    import(&format!("python wan_train_network.py --dit a.safetensors --dataset_config none.toml {options}\n")).unwrap()
}

#[test]
fn a_lora_of_musubi_tuner_arrives() {
    let dir = folder(CLIPS);
    let imported = import(&WAN.replace("DIR", &dir.path().display().to_string())).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let (train, data) = (&config.train, &config.data);
    assert_eq!((imported.from, config.run.name.as_str(), config.run.seed), ("musubi-tuner", "cats", 42));
    assert_eq!((train.epochs, train.global_batch_size, train.lr, train.clip_grad), (Some(48.0), 2, 2e-4, 1.0));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas), (0.1, [0.9, 0.99]));
    assert_eq!((data.video.frames, data.pack.max_tokens), (Some(49), 20_280));
    let found = json_of(&imported);
    assert_eq!(found["model"]["load"], json!("Wan-AI/Wan2.1-T2V-1.3B-Diffusers"));
    let foundation = &found["model"]["foundation"];
    assert_eq!(foundation["lora"], json!({ "r": 32, "alpha": 1.0, "loraplus_lr_ratio": 4.0 }));
    assert_eq!((&foundation["recompute"], &foundation["frozen_precision"]), (&json!("all"), &json!("fp8_e4m3fn")));
    assert_eq!(found["train"]["sigma"], json!({ "density": "logit_normal", "std": 1.0, "shift": 3.0 }));
    assert_eq!((&found["train"]["schedule"], &found["train"]["precision"]), (&json!("constant"), &json!("bf16")));
    assert_eq!(found["train"]["optimizer"]["type"], json!("adamw_8bit"));
    assert_eq!((&found["data"]["video"]["area"], &found["data"]["video"]["take"]), (&json!("480x832"), &Value::Null));
    assert_eq!(found["edges"]["pixels"]["credit"], json!("224MiB"));
    // Its epochs have each sample three times.
    assert_eq!(config.checkpoint.every_epochs, Some(3.0));
    assert_eq!(missing(&imported), ["--some_new_option", "general.some_key", "network_args rank_dropout"]);
    for key in ["--dataset_config", "--t5", "--sdpa", "--num_cpu_threads_per_process", "datasets.0.source_fps"] {
        assert!(settled(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    for key in ["--dit", "--task", "general.resolution", "datasets.0.num_repeats", "--fp8_base", "--optimizer_args"] {
        assert!(arrived(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    assert!(imported.keys.iter().all(|key| key.value != "hush"), "a key is shown to nobody");
    let module = WAN.replace("src/musubi_tuner/wan_train_network.py", "-m musubi_tuner.wan_train_network");
    let words = module.replace("\\\n", " ").replace('"', "").replace("DIR", &dir.path().display().to_string());
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    assert_eq!(import_words(&words).unwrap().yaml, imported.yaml);
}

#[test]
fn data_sets_of_several_sizes_are_told() {
    let sets = "[general]\nbatch_size = 1\n\n[[datasets]]\nvideo_jsonl_file = \"DIR/list.jsonl\"\n\
                target_frames = [1, 25]\nframe_extraction = \"chunk\"\nresolution = 512\n\n[[datasets]]\n\
                image_directory = \"DIR/pictures\"\nresolution = [640, 480]\nnum_repeats = 2\n\
                caption_extension = \".cap\"\nbatch_size = 4\n";
    let (imported, dir) = of_sets(WAN, sets);
    let found = json_of(&imported);
    let [list, pictures] = ["list.jsonl", "pictures"].map(|name| format!("{dir}/{name}"));
    assert_eq!(found["data"]["train"], json!([{ "path": list, "media_dir": "." }, { "path": pictures }]));
    assert_eq!(found["data"]["video"], json!({ "area": "512x512", "frames": 25, "take": "chunks" }));
    assert_eq!((&found["data"]["image"]["area"], &found["train"]["epochs"]), (&json!("480x640"), &json!(16.0)));
    assert_eq!((&found["data"]["pack"]["max_tokens"], &found["train"]["global_batch_size"]), (&json!(7168), &json!(1)));
    let told = missing(&imported);
    for key in ["datasets.0.target_frames", "datasets.1.batch_size", "datasets.1.caption_extension"] {
        assert!(told.contains(&key), "{key}: {told:?}");
    }
    assert!(told.contains(&"datasets.1.num_repeats"), "{told:?}");
    assert_eq!(found["data"]["mix"], json!("samples"));
    for part in ["without enable_bucket", "bucket_no_upscale", "several pieces", "source_fps"] {
        assert!(imported.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", imported.notes);
    }
    // A size that is none is told, and nothing is computed from it.
    for size in ["0", "[640, 1e30]", "\"large\""] {
        let sets = format!("[general]\nresolution = {size}\n[[datasets]]\nimage_directory = \"DIR/pictures\"\n");
        let (imported, _) = of_sets(WAN, &sets);
        assert!(missing(&imported).contains(&"general.resolution"), "{:?}", imported.keys);
        assert_eq!(json_of(&imported)["data"]["image"], Value::Null, "{size}");
    }
}

#[test]
fn clips_at_several_sizes_arrive() {
    let sets = "[[datasets]]\nvideo_directory = \"DIR/clips\"\nresolution = 512\n\n[[datasets]]\n\
                video_directory = \"DIR/clips\"\nresolution = [640, 480]\n";
    let dir = folder(sets);
    let root = dir.path().display().to_string();
    let imported = import(&WAN.replace("DIR", &root)).unwrap();
    let (found, path) = (json_of(&imported), format!("{root}/clips"));
    assert_eq!(found["data"]["train"], json!([{ "path": path, "area": "512x512" }, { "path": path }]));
    assert_eq!(found["data"]["video"]["area"], json!("480x640"));
    for key in ["datasets.0.resolution", "datasets.1.resolution"] {
        assert!(arrived(&imported).contains(&key), "{key}: {:?}", imported.keys);
    }
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    assert_eq!(config.data.train[0].area, Some(Area::new(512 * 512)));
}

#[test]
fn an_extension_of_captions_for_all_sets_is_told_of_the_sets_that_it_holds_for() {
    let sets = |extension: &str, own: &str| {
        let sets = format!(
            "[general]\ncaption_extension = \"{extension}\"\nresolution = 512\n[[datasets]]\n\
             image_jsonl_file = \"DIR/list.jsonl\"\n[[datasets]]\nimage_directory = \"DIR/pictures\"\n{own}\n"
        );
        let (imported, _) = of_sets(WAN, &sets);
        missing(&imported).into_iter().filter(|key| key.contains("caption")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(sets(".cap", ""), ["general.caption_extension"]);
    assert_eq!(sets(".cap", "caption_extension = \".txt\""), [""; 0]);
    assert_eq!(sets(".txt", "caption_extension = \".cap\""), ["datasets.1.caption_extension"]);
}

#[test]
fn parts_of_all_steps_and_arguments_of_networks_are_told() {
    let schedule = |options: &str| {
        let found = json_of(&of(&format!("--lr_scheduler warmup_stable_decay {options}")));
        (found["train"]["schedule"].clone(), found["train"]["decay_steps"].clone())
    };
    assert_eq!(schedule("--lr_decay_steps 20"), (json!("wsd"), json!(20)));
    assert_eq!(schedule("--lr_scheduler_min_lr_ratio 0.1"), (json!("constant"), Value::Null));
    let notes = of("--lr_scheduler warmup_stable_decay").notes;
    assert!(!notes.iter().any(|note| note.contains("half a cosine")), "nothing falls: {notes:?}");
    let imported = of("--lr_scheduler cosine --lr_warmup_steps 10% --network_args verbose=True loraplus_lr_ratio=x");
    let warmup = &json_of(&imported)["train"];
    assert_eq!((warmup["warmup_ratio"].as_f64(), &warmup["warmup_steps"]), (Some(0.1), &Value::Null));
    assert!(settled(&imported).contains(&"network_args verbose"), "{:?}", imported.keys);
    assert_eq!(missing(&imported), ["--dataset_config", "network_args loraplus_lr_ratio"]);
}

#[test]
fn noise_levels_of_musubi_tuner_arrive() {
    for (options, sigma) in [
        ("", json!({ "density": "discrete" })),
        (
            "--weighting_scheme logit_normal --logit_mean 0.5",
            json!({ "density": "logit_normal", "mean": -0.5, "std": 1.0 }),
        ),
        ("--weighting_scheme mode", json!({ "density": "mode", "scale": 1.29 })),
        ("--timestep_sampling sigmoid --sigmoid_scale 2", json!({ "density": "logit_normal", "std": 2.0 })),
        (
            "--timestep_sampling logsnr --logit_mean 2 --logit_std 3",
            json!({ "density": "logsnr", "mean": 2.0, "std": 3.0 }),
        ),
        (
            "--timestep_sampling uniform --min_timestep 100 --max_timestep 900",
            json!({ "density": "uniform", "min": 0.1, "max": 0.9 }),
        ),
    ] {
        let imported = of(options);
        assert_eq!(json_of(&imported)["train"]["sigma"], sigma, "{options}");
        assert_eq!(missing(&imported), ["--dataset_config"], "{options}");
    }
    let told = |options: &str| missing(&of(options)).iter().any(|key| *key != "--dataset_config");
    // The shift of the scheduler does not apply to its grid.
    assert!(!told("--discrete_flow_shift 5"));
    for options in ["--timestep_sampling qwen_shift", "--timestep_sampling flux_shift", "--min_timestep 9"] {
        assert!(told(options), "{options}");
    }
    assert_eq!(json_of(&of("--weighting_scheme cosmap"))["train"]["loss"], json!({ "weight": "cosmap" }));
    let squeezed = |options: &str| {
        let imported = of(&format!("--timestep_sampling shift --max_timestep 900 {options}"));
        json_of(&imported)["train"]["sigma"]["squeeze"] == true
    };
    assert!(squeezed("") && !squeezed("--preserve_distribution_shape"));
    let whole = json_of(&of("--timestep_sampling shift --max_timestep 1000"));
    assert!(whole["train"]["sigma"]["squeeze"].is_null(), "{whole}");
}

#[test]
fn the_model_goes_by_task_and_file() {
    let model = |options: &str| json_of(&of(options))["model"].clone();
    assert_eq!(model("")["load"], json!("Wan-AI/Wan2.1-T2V-14B-Diffusers"));
    let larger = model("--task i2v-14B --dit wan2.1_i2v_720p_14B_bf16.safetensors");
    assert_eq!(larger["load"], json!("Wan-AI/Wan2.1-I2V-14B-720P-Diffusers"));
    let low = "--task t2v-A14B --timestep_sampling shift --min_timestep 0 --max_timestep 875 --timestep_boundary 875 \
               --preserve_distribution_shape";
    let imported = of(low);
    let found = json_of(&imported);
    let expected = json!({ "load": "Wan-AI/Wan2.2-T2V-A14B-Diffusers", "experts": "low" });
    assert_eq!(["load", "experts"].map(|key| &found["model"][key]), ["load", "experts"].map(|key| &expected[key]));
    assert_eq!((&found["train"]["sigma"]["max"], missing(&imported)), (&Value::Null, vec!["--dataset_config"]));
    let high = model("--task i2v-A14B --dit wan2.2_i2v_high_noise_14B_fp16.safetensors");
    assert_eq!(high["experts"], json!("high"));
    let both = model("--task i2v-A14B --dit low_noise.safetensors --dit_high_noise high_noise.safetensors");
    assert_eq!((&both["load"], &both["experts"]), (&json!("Wan-AI/Wan2.2-I2V-A14B-Diffusers"), &Value::Null));
    let unsaid = import("python wan_train_network.py --task $TASK --dit a --dataset_config b\n").unwrap();
    assert!(json_of(&unsaid)["model"]["load"].is_null() && missing(&unsaid).contains(&"--dit"), "{:?}", unsaid.keys);
}

const QWEN: &str = "accelerate launch --num_processes 2 src/musubi_tuner/qwen_image_train_network.py \
    --model_version edit-2511 --dit m/edit/transformer/diffusion_pytorch_model-00001-of-00005.safetensors --vae v \
    --text_encoder t --xformers --dataset_config DIR/sets.toml --timestep_sampling qwen_shift \
    --network_module networks.lora_qwen_image --network_weights a.safetensors --network_dim 16 --optimizer_type adamw \
    --lr_scheduler cosine --lr_warmup_steps 0.1 --max_train_steps 500 --save_every_n_steps 100 --log_with all \
    --wandb_run_name n --blocks_to_swap 16\n";

#[test]
fn an_editing_model_arrives() {
    let sets = "[general]\nresolution = [1024, 1024]\nenable_bucket = true\nbucket_no_upscale = true\n\n[[datasets]]\n\
                image_jsonl_file = \"DIR/list.jsonl\"\nnum_repeats = 5\ncontrol_resolution = [1024, 1024]\n\
                control_directory = \"DIR/pictures\"\n";
    let (imported, _) = of_sets(QWEN, sets);
    let found = json_of(&imported);
    assert_eq!((&found["model"]["load"], &found["run"]["name"]), (&json!("m/edit"), &json!("imported")));
    assert_eq!(found["model"]["foundation"]["lora"], json!({ "adapter": "a.safetensors" }));
    assert_eq!(found["train"]["sigma"], json!({ "density": "logit_normal", "std": 1.0, "shift": "auto" }));
    let train = &found["train"];
    assert_eq!((&train["steps"], &train["global_batch_size"]), (&json!(500), &json!(2)));
    assert_eq!((&train["schedule"], train["warmup_ratio"].as_f64()), (&json!("cosine"), Some(0.1)));
    assert_eq!((train["lr"].as_f64(), &found["checkpoint"]["every_steps"]), (Some(2e-6), &json!(100)));
    assert_eq!(found["log"]["wandb"], json!({ "project": "network_train", "name": "n" }));
    // The picture, and three that it is made from.
    assert_eq!((&found["data"]["pack"]["max_tokens"], &found["data"]["video"]), (&json!(16_384), &Value::Null));
    assert_eq!(missing(&imported), ["--blocks_to_swap", "datasets.0.control_directory"]);
    let whole = "python qwen_image_train.py --dit qwen_image_2512_bf16.safetensors --dataset_config none.toml \
                 --full_bf16 --optimizer_type adafactor --optimizer_args relative_step=False --fused_backward_pass \
                 --max_grad_norm 0 --network_dim 4\n";
    let imported = import(whole).unwrap();
    let found = json_of(&imported);
    assert_eq!(found["model"], json!({ "load": "Qwen/Qwen-Image-2512" }));
    assert_eq!(found["train"]["clip_grad"].as_f64(), Some(0.0));
    let told = ["--dataset_config", "--fused_backward_pass", "--optimizer_type", "optimizer_args relative_step"];
    assert_eq!(missing(&imported), told);
}

#[test]
fn options_in_toml_arrive_alone_and_below_a_command() {
    let text = "dit = \"a.safetensors\"\ndataset_config = \"none.toml\"\nnetwork_module = \"networks.lora_wan\"\n\
                learning_rate = 1e-3\nnetwork_args = [\"loraplus_lr_ratio=2\"]\n";
    let of = |imported: &Imported| {
        let found = json_of(imported);
        let ratio = found["model"]["foundation"]["lora"]["loraplus_lr_ratio"].as_f64();
        (imported.from, found["train"]["lr"].as_f64(), found["train"]["steps"].as_u64(), ratio)
    };
    assert_eq!(of(&import(text).unwrap()), ("musubi-tuner", Some(1e-3), Some(1600), Some(2.0)));
    let sections = format!("{text}\n# of the run\n[run]\nmax_train_steps = 10\n");
    assert_eq!(of(&import(&sections).unwrap()), ("musubi-tuner", Some(1e-3), Some(10), Some(2.0)));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.toml").display().to_string();
    std::fs::write(&path, &sections).unwrap();
    for name in [path.as_str(), path.strip_suffix(".toml").unwrap()] {
        let launcher = "accelerate launch --config_file x/multi_gpu.yaml --num_processes 4 wan_train_network.py";
        let imported = import(&format!("{launcher} --config_file {name} --learning_rate 2e-4\n")).unwrap();
        assert_eq!(of(&imported), ("musubi-tuner", Some(2e-4), Some(10), Some(2.0)), "{name}");
        assert!(settled(&imported).contains(&path.as_str()), "{:?}", imported.keys);
        assert_eq!(json_of(&imported)["pools"]["foundation"], json!({ "replicas": 4, "zero": 0 }));
    }
    let unknown = import(&text.replace("networks.lora_wan", "networks.lora")).unwrap_err().to_string();
    assert!(unknown.contains("import the command with --config_file"), "{unknown}");
}

#[test]
fn scripts_and_models_that_are_not_here_are_refused_by_name() {
    let given = "--dit a --dataset_config b.toml";
    for (line, part) in [
        (format!("python hv_train_network.py {given}"), "script `hv_train_network` has no counterpart"),
        (format!("python src/musubi_tuner/zimage_train.py {given}"), "script `zimage_train`"),
        (format!("python wan_train_network.py {given} --network_module networks.loha"), "network_module `loha`"),
        (format!("python wan_train_network.py {given} --task t2v-14B-FC"), "task `t2v-14B-FC`"),
        (format!("python qwen_image_train.py {given} --model_version layered"), "model_version `layered`"),
        ("python wan_cache_latents.py --dataset_config a.toml --vae b".to_owned(), "loongforge data encode"),
        ("[[datasets]]\nimage_directory = \"x\"\n".to_owned(), "import the command that trains"),
    ] {
        let error = import(&line).unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
    // Another trainer's script of such a name.
    let other = import("python train_network.py --pretrained_model_name_or_path a --dataset_config b.toml\n");
    assert!(!other.unwrap_err().to_string().contains("musubi-tuner's script"));
}
