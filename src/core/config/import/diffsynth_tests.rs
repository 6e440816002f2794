//! Commands in the manner of DiffSynth-Studio's examples, and what comes of them.

use super::tests::{json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const WAN: &str = r#"modelscope download --dataset x/sets --local_dir ./data
accelerate launch --config_file x/accelerate_config_zero2offload.yaml --num_processes 2 x/wanvideo/model_training/train.py \
  --dataset_base_path data/cats \
  --dataset_metadata_path data/cats/metadata.csv \
  --height 480 --width 832 --num_frames 49 --dataset_repeat 100 \
  --model_id_with_origin_paths "ID:diffusion_pytorch_model*.safetensors,ID:models_t5_umt5-xxl-enc-bf16.pth,ID:Wan2.1_VAE.pth" \
  --learning_rate 2e-4 --num_epochs 5 --gradient_accumulation_steps 4 --remove_prefix_in_ckpt "pipe.dit." \
  --output_path "./models/train/cats_lora" --lora_base_model "dit" --lora_target_modules "q,k,v,o,ffn.0,ffn.2" --lora_rank 8 \
  --extra_inputs "input_image" --use_gradient_checkpointing_offload --some_new_option 3
"#;

/// Returns the folder of the data, with lists of records.
fn data() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("metadata.csv"), "video,prompt\n").unwrap();
    std::fs::write(dir.path().join("metadata.json"), "[]").unwrap();
    dir
}

#[test]
fn a_lora_of_wan_arrives() {
    let dir = data();
    let text = WAN.replace("ID", "Wan-AI/Wan2.1-I2V-14B-480P").replace("data/cats", &dir.path().display().to_string());
    let imported = import(&text).unwrap();
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    assert_eq!(imported.from, "DiffSynth-Studio");
    let (train, data) = (&config.train, &config.data);
    assert_eq!((train.epochs, train.global_batch_size, train.lr, train.clip_grad), (Some(500.0), 8, 2e-4, 0.0));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas), (0.01, [0.9, 0.999]));
    assert_eq!((data.video.frames, data.pack.max_tokens), (Some(49), 20_280));
    let found = json_of(&imported);
    assert_eq!(found["model"]["load"], json!("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"));
    let lora = json!({
        "r": 8, "alpha": 8, "target_modules": ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]
    });
    assert_eq!(
        (&found["model"]["foundation"]["lora"], &found["model"]["foundation"]["recompute"]),
        (&lora, &json!("all"))
    );
    assert_eq!(found["train"]["sigma"], json!({ "density": "discrete", "shift": 5.0 }));
    assert_eq!((&found["train"]["loss"]["weight"], &found["train"]["schedule"]), (&json!("bell"), &json!("constant")));
    // Of frames and conditions: 12 bytes a pixel, twice.
    assert_eq!(found["edges"]["pixels"]["credit"], json!("448MiB"));
    assert_eq!(found["pools"]["foundation"], json!({ "replicas": 2, "zero": 2 }));
    assert_eq!(found["train"]["optimizer"]["offload"], json!({ "to": "cpu" }));
    assert_eq!(missing(&imported), ["--some_new_option", "--use_gradient_checkpointing_offload"]);
    assert!(settled(&imported).contains(&"--dataset_base_path"));
    let named = ["--config_file", "--num_processes", "--extra_inputs", "--remove_prefix_in_ckpt"];
    assert!(named.iter().all(|key| imported.keys.iter().any(|it| it.key == *key)), "{:?}", imported.keys);
}

#[test]
fn sizes_and_levels_go_by_the_model() {
    let of = |id: &str| json_of(&import(&WAN.replace("ID", id)).unwrap());
    let ti2v = of("Wan-AI/Wan2.2-TI2V-5B");
    assert_eq!(
        (&ti2v["data"]["pack"]["max_tokens"], &ti2v["data"]["video"]["first_frame"]),
        (&json!(5070), &json!(1.0))
    );
    // Half of the clip's bytes of a model that is given frames as conditions.
    assert_eq!(ti2v["edges"]["pixels"]["credit"], json!("224MiB"));
    let bounded = |text: &str| {
        let line = WAN.replace("--some_new_option 3", text).replace("ID", "Wan-AI/Wan2.1-T2V-1.3B");
        json_of(&import(&line).unwrap())["train"]["sigma"].clone()
    };
    let sigma = bounded("--max_timestep_boundary 0.417 --min_timestep_boundary 0");
    assert_eq!((sigma["min"].as_f64(), sigma["max"].as_f64()), (Some(0.87485), Some(1.0)));
    // One of two transformers has its own levels.
    let text = WAN.replace("ID:diffusion", "ID:low_noise_model/diffusion").replace("ID", "Wan-AI/Wan2.2-T2V-A14B");
    let imported =
        import(&text.replace("--some_new_option 3", "--max_timestep_boundary 1 --min_timestep_boundary 0.417"))
            .unwrap();
    let found = json_of(&imported);
    assert_eq!((&found["model"]["experts"], &found["train"]["sigma"]["min"]), (&json!("low"), &json!(null)));
    assert_eq!(missing(&imported), ["--use_gradient_checkpointing_offload"]);
}

const QWEN: &str = r#"accelerate launch x/qwen_image/model_training/train.py --dataset_base_path data/edits \
  --dataset_metadata_path lists/metadata.json --data_file_keys "image,edit_image" --extra_inputs "edit_image" --max_pixels 1048576 \
  --dataset_repeat 50 --model_id_with_origin_paths "Qwen/Qwen-Image-Edit-2511:transformer/diffusion_pytorch_model*.safetensors,Qwen/Qwen-Image:text_encoder/model*.safetensors,Qwen/Qwen-Image:vae/diffusion_pytorch_model.safetensors" \
  --output_path "./models/edits" --trainable_models "dit" --use_gradient_checkpointing --find_unused_parameters --zero_cond_t \
  --enable_wandb_log --save_steps 200
"#;

#[test]
fn whole_weights_of_qwen_image_arrive() {
    let dir = data();
    let edits = dir.path().join("edits");
    std::fs::create_dir(&edits).unwrap();
    let text = QWEN.replace("lists", &dir.path().display().to_string());
    let imported = import(&text.replace("data/edits", &edits.display().to_string())).unwrap();
    load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml));
    let found = json_of(&imported);
    assert_eq!(
        (&found["model"]["load"], &found["model"]["foundation"]["lora"]),
        (&json!("Qwen/Qwen-Image-Edit-2511"), &json!(null))
    );
    assert_eq!((&found["data"]["image"]["area"], &found["data"]["video"]), (&json!(1_048_576), &json!(null)));
    assert_eq!((&found["train"]["epochs"], &found["train"]["lr"]), (&json!(50.0), &json!(1e-4)));
    assert_eq!(found["train"]["sigma"], json!({ "density": "discrete", "shift": 2.225541, "min": 0.02 }));
    assert_eq!(
        (&found["checkpoint"]["every_steps"], &found["log"]["wandb"]["project"]),
        (&json!(200), &json!("DiffSynth-Studio"))
    );
    // Another model of the same kind.
    let other =
        json_of(&import(&QWEN.replace("Qwen/Qwen-Image-Edit-2511", "FireRedTeam/FireRed-Image-Edit-1.1")).unwrap());
    assert_eq!(other["model"]["load"], json!("FireRedTeam/FireRed-Image-Edit-1.1"));
    assert_eq!((&other["train"]["sigma"], &other["data"]["pack"]), (&found["train"]["sigma"], &found["data"]["pack"]));
    // The list lies elsewhere.
    assert_eq!(found["data"]["train"][0]["media_dir"], json!(edits));
    assert!(missing(&imported).is_empty(), "{:?}", missing(&imported));
}

#[test]
fn files_of_this_machine_name_the_model() {
    let paths = |list: &str| {
        let line = WAN.replace("--model_id_with_origin_paths \"ID:diffusion_pytorch_model*.safetensors,ID:models_t5_umt5-xxl-enc-bf16.pth,ID:Wan2.1_VAE.pth\"", &format!("--model_paths '{list}'"));
        import(&line).unwrap()
    };
    let wan = paths(
        r#"[["m/Wan-AI/Wan2.1-T2V-14B/diffusion_pytorch_model-1.safetensors"], "m/Wan-AI/Wan2.1-T2V-14B/Wan2.1_VAE.pth"]"#,
    );
    assert_eq!(json_of(&wan)["model"]["load"], json!("Wan-AI/Wan2.1-T2V-14B-Diffusers"));
    assert!(wan.notes.iter().any(|note| note.contains("pickles")), "{:?}", wan.notes);
    let qwen = paths(r#"["m/Qwen/Qwen-Image/vae/x.safetensors", "m/Qwen/Qwen-Image/transformer/x.safetensors"]"#);
    assert_eq!(json_of(&qwen)["model"]["load"], json!("m/Qwen/Qwen-Image"));
    assert!(missing(&paths(r#"["m/other/x.safetensors"]"#)).contains(&"--model_paths"));
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (from, to, part) in [
        ("ID:", "Wan-AI/Wan2.1-VACE-14B:", "model `Wan-AI/Wan2.1-VACE-14B` has no counterpart"),
        ("--some_new_option 3", "--task direct_distill", "task `direct_distill`"),
        ("--some_new_option 3", "--task sft:data_process", "data encode"),
        ("--lora_base_model \"dit\"", "--lora_base_model vace", "`--lora_base_model vace`"),
        ("\"input_image\"", "input_image,control_video", "extra input `control_video`"),
        ("\"ID:diff", "\"a/control:model.safetensors,ID:diff", "model `a/control` has no counterpart"),
    ] {
        let text = WAN.replace(from, to).replace("ID", "Wan-AI/Wan2.1-T2V-14B");
        let error = import(&text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // Its name comes before its parts and inputs.
    let text = WAN.replace("input_image", "vace_video").replace("--lora_base_model \"dit\"", "--lora_base_model vace");
    let error = import(&text.replace("ID:", "Wan-AI/Wan2.1-VACE-14B:")).unwrap_err().to_string();
    assert!(error.contains("model `Wan-AI/Wan2.1-VACE-14B` has no counterpart"), "{error}");
    // The last of several commands is translated, and the others are said.
    let two = WAN.replace("ID", "Wan-AI/Wan2.1-T2V-14B") + "\n" + QWEN;
    let imported = import(&two).unwrap();
    assert_eq!(json_of(&imported)["model"]["load"], json!("Qwen/Qwen-Image-Edit-2511"));
    assert!(imported.notes.iter().any(|note| note.contains("several training commands")), "{:?}", imported.notes);
}

#[test]
fn sizes_beyond_all_memory_do_not_wrap_around() {
    let text = WAN.replace("--height 480 --width 832 --num_frames 49", "--height 1e10 --width 1e10 --num_frames 1e18");
    let imported = import(&text.replace("ID", "Wan-AI/Wan2.1-T2V-1.3B")).unwrap();
    assert_eq!(json_of(&imported)["data"]["pack"]["max_tokens"].as_u64(), Some(u64::MAX / 256));
}
