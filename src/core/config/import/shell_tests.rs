//! Launch scripts in the manner of those trainers' examples, and what comes of them.

use super::tests::{arrived, json_of, missing, settled};
use super::*;
use crate::config::load_text;
use serde_json::json;

const SCRIPT: &str = r#"#!/bin/bash
# Two nodes.
FORGE_PATH=${FORGE_PATH:-"/opt/forge"}
DATA_PATH=${DATA_PATH:-"DIR/chat.json"}
#DATA_PATH=${DATA_PATH:-"DIR/other.json"}
MODEL="DIR/model"
SAVE=$MODEL-sft
GPUS_PER_NODE=8
NNODES=${WORLD_SIZE:-"2"}
SEED=$((40 + 2 * (3 - 2)))
ARGS_OF_LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES   # of the cluster
    --master_addr ${MASTER_ADDR:-"localhost"}
)
TRAINING_ARGS=(
    --training-phase sft
    --tokenizer-type HFTokenizer
    --hf-tokenizer-path $MODEL
    --data-path $DATA_PATH
    --split 100,0,0
    --seq-length 4096
    --micro-batch-size 1
    --global-batch-size 64
    --lr 1e-5
    --min-lr 1.0e-6
    #--commented-out 3
    --adam-beta1 0.9 \
    --adam-beta2 0.95
    "--weight-decay 0.1"
    --lr-decay-style cosine --lr-warmup-fraction .03
    --train-iters 500
    --lr-decay-iters=500
    --bf16
    --seed $SEED
    --load ${SAVE}
    --save ${SAVE}
    --save-interval 250
    --eval-interval 100
    --distribution $KIND
    --stamp $(date +%s)
)
if [[ "$GPUS_PER_NODE" -gt 4 ]] && [ -z "${SMALL}" ]; then
    TRAINING_ARGS+=( --tensor-model-parallel-size 4 )
elif [ -n "$SMALL" ]; then
    TRAINING_ARGS+=( --tensor-model-parallel-size 1 )
fi
if [ -n "${WANDB_API_KEY}" ]; then
    TRAINING_ARGS+=( --wandb-project mine )
fi
if nvidia-smi | grep -q H800; then
    TRAINING_ARGS+=( --fp8-format hybrid )
fi
cat > notes.txt <<END
torchrun --nothing $MODEL train.py --lr 3
END
PYTHONPATH=$FORGE_PATH:$PYTHONPATH \
    torchrun ${ARGS_OF_LAUNCH[@]} \
    "$FORGE_PATH/train.py" \
    ${TRAINING_ARGS[@]} --sequence-parallel --log-interval 1 $@ 2>&1 | tee log.txt
"#;

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chat.json"), "[]").unwrap();
    std::fs::create_dir(dir.path().join("model")).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::fs::write(dir.path().join("model").join(name), "{}").unwrap();
    }
    dir
}

#[test]
fn a_launch_script_is_read_and_not_run() {
    let dir = folder();
    let root = dir.path().display().to_string();
    let imported = import(&SCRIPT.replace("DIR", &root)).unwrap();
    assert_eq!(imported.from, "Megatron");
    let config = load_text(&imported.yaml).unwrap_or_else(|report| panic!("{}\n{report}", imported.yaml)).config;
    let (train, foundation) = (&config.train, &config.pools.foundation);
    assert_eq!((train.steps, train.global_batch_size, train.lr, train.min_lr), (Some(500), 64, 1e-5, 1e-6));
    assert_eq!((train.optimizer.weight_decay, train.optimizer.betas), (0.1, [0.9, 0.95]));
    assert_eq!((train.warmup_ratio, config.run.seed, config.run.name.as_str()), (Some(0.03), 42, "model-sft"));
    assert_eq!((foundation.tensor_parallel, foundation.replicas, foundation.sequence_parallel), (4, 4, true));
    assert_eq!((config.data.pack.max_tokens, config.checkpoint.every_steps), (4096, 250));
    assert!(config.checkpoint.at_end);
    assert_eq!(config.checkpoint.dir, dir.path().join("model-sft"));
    // Nothing is lost: what comes from elsewhere, what no one has said, and what holds only sometimes.
    assert_eq!(missing(&imported), ["--distribution", "--fp8-format", "--stamp"]);
    let settled = settled(&imported);
    for key in ["--wandb-project", "--tensor-model-parallel-size", "--load", "--split", "--eval-interval"] {
        assert!(settled.contains(&key), "{key}: {settled:?}");
    }
    assert!(imported.keys.iter().all(|key| !key.key.contains("commented")), "{:?}", imported.keys);
    assert!(!dir.path().join("notes.txt").exists() && !std::path::Path::new("notes.txt").exists());
}

#[test]
fn a_tokenizer_of_the_hub_gives_no_weights_where_megatron_loads_none() {
    let sizes = "--num-layers 2 --hidden-size 64 --ffn-hidden-size 96 --num-attention-heads 4 --swiglu \
        --normalization RMSNorm --position-embedding-type rope --vocab-size 320";
    let model = |more: &str| {
        let options = format!("{sizes} --tokenizer-type HuggingFaceTokenizer --tokenizer-model org/model {more}");
        let imported = import(&format!("torchrun pretrain_gpt.py --train-iters 9 --data-path d {options}")).unwrap();
        json_of(&imported)["model"].clone()
    };
    for more in ["", "--save runs/a --load runs/a"] {
        let found = model(more);
        assert_eq!((&found["tokenizer"], &found["weights"]), (&json!("org/model"), &json!("random")), "{more}");
        assert_eq!((&found["config"]["model_type"], found.get("load")), (&json!("llama"), None), "{more}");
    }
    assert_eq!(model("--qk-layernorm"), json!({ "load": "org/model", "weights": "random" }));
    for more in ["--load converted --save runs/a", "--pretrained-checkpoint converted", "--load $1"] {
        assert_eq!(model(more), json!({ "load": "org/model" }), "{more}");
    }
}

#[test]
fn layers_of_a_virtual_stage_are_counted_as_stages_of_a_rank() {
    let of = |options: &str| {
        let imported = import(&format!("x/train.py --train-iters 1 --num-layers 32 {options}")).unwrap();
        let stages = json_of(&imported)["pools"]["foundation"]["virtual_stages"].as_u64();
        (stages, missing(&imported).contains(&"--num-layers-per-virtual-pipeline-stage"))
    };
    let each = "--num-layers-per-virtual-pipeline-stage";
    assert_eq!(of(&format!("--pipeline-model-parallel-size 2 {each} 4")), (Some(4), false));
    for unknown in ["--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size $PP", ""] {
        assert_eq!(of(&format!("{unknown} {each} 5")), (None, true), "{unknown}");
    }
}

#[test]
fn sizes_of_a_llama_make_a_config_and_binary_data_are_read() {
    let script = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --ffn-hidden-size 96 \\
        --num-attention-heads 4 --group-query-attention --num-query-groups 2 --swiglu --normalization RMSNorm \\
        --position-embedding-type rope --rotary-base 500000 --untie-embeddings-and-output-weights --vocab-size 320 \\
        --num-experts 4 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 --disable-bias-linear --init-method-std 0.01 \\
        --seq-length 128 --micro-batch-size 2 --global-batch-size 16 --train-samples 1600 --lr-warmup-samples 160 \\
        --lr 1e-3 --lr-decay-style cosine --lr-decay-samples 800 --data-path 0.3 a_text_document 0.7 b_text_document \\
        --split 949,50,1 --eval-iters 10 --eval-interval 20 --pipeline-model-parallel-size 2 --fp16 --attention-dropout 0.1";
    let imported = import(script).unwrap();
    let node = json_of(&imported);
    let model = &node["model"]["config"];
    assert_eq!((&model["model_type"], &model["num_key_value_heads"]), (&json!("mixtral"), &json!(2)));
    assert_eq!((model["rope_theta"].as_f64(), &model["tie_word_embeddings"]), (Some(500_000.0), &json!(false)));
    assert_eq!((&node["train"]["steps"], &node["train"]["warmup_steps"]), (&json!(100), &json!(10)));
    assert_eq!((&node["data"]["pack"]["mode"], &node["train"]["phase"]), (&json!("stream"), &json!("pretrain")));
    assert_eq!((&node["data"]["val_size"], &node["eval"]["max_samples"]), (&json!(0.05), &json!(160)));
    assert_eq!(node["pools"]["foundation"], json!({"replicas": 4, "pipeline_parallel": 2}));
    assert_eq!(node["data"]["train"][1], json!({"path": "b_text_document", "weight": 0.7}));
    assert_eq!(missing(&imported), ["--attention-dropout", "--fp16", "--lr-decay-samples"]);
    assert!(imported.notes.iter().any(|note| note.contains("here a micro-batch is one pack")), "{:?}", imported.notes);
    // Nothing is written without `--save`, and that can be run.
    assert_eq!((&node["checkpoint"]["at_end"], &node["eval"]["save_best"]), (&json!(false), &json!(false)));
    assert!(imported.notes.iter().any(|note| note.contains("drop checkpoint.at_end")), "{:?}", imported.notes);
    let unsaved = "x/train.py --train-iters 1 --data-path a.jsonl --dataloader-type external --save-interval 5";
    let imported = import(unsaved).unwrap();
    let node = json_of(&imported);
    assert_eq!(node["checkpoint"], json!({ "at_end": false }));
    assert!(settled(&imported).contains(&"--save-interval"));
    // A folder that an argument gives is one.
    let saved =
        "x/train.py --train-iters 1 --save $1 --save-interval 5 --nproc_per_node 8 --tensor-model-parallel-size $TP";
    let imported = import(saved).unwrap();
    let node = json_of(&imported);
    assert_eq!((&node["checkpoint"], &node["pools"]), (&json!({ "every_steps": 5 }), &json!(null)));
    for part in
        ["the script does not give the checkpoint folder", "set pools.foundation.replicas", "checkpoint.keep_last"]
    {
        assert!(imported.notes.iter().any(|note| note.contains(part)), "{:?}", imported.notes);
    }
    let batch = |options: &str| {
        let imported = import(&format!("torchrun x/train.py --train-iters 1 --micro-batch-size 2 {options}")).unwrap();
        let node = json_of(&imported);
        (node["train"]["global_batch_size"].as_u64(), imported.notes.iter().any(|note| note.contains("one replica")))
    };
    assert_eq!(batch(""), (Some(2), true));
    assert_eq!(batch("--global-batch-size $3"), (None, false));
    let layout =
        "torchrun --nproc_per_node 8 x/train.py --train-iters 1 --micro-batch-size 2 --tensor-model-parallel-size 2";
    let node = json_of(&import(layout).unwrap());
    assert_eq!(node["train"]["global_batch_size"], json!(8));
    // Packs of samples are what LoongForge's batches count.
    let packed = "x/train.py --train-iters 1 --training-phase sft --packing-sft-data";
    let node = json_of(&import(packed).unwrap());
    assert_eq!(node["data"]["pack"], json!({ "mode": "stream", "too_long": "truncate" }));
    let weights = "x/train.py --train-iters 1 --data-path 3 a.jsonl 1 b.jsonl --dataloader-type external";
    let node = json_of(&import(weights).unwrap());
    let first = &node["data"]["train"][0];
    assert_eq!((&first["path"], first["weight"].as_f64()), (&json!("a.jsonl"), Some(3.0)));
}

#[test]
fn trls_command_lines_and_configs_arrive() {
    let line = "trl dpo --model_name_or_path org/model-1B --dataset_name org/pairs --use_peft --lora_r 8 --beta 0.3 \\
        --loss_type ipo --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --learning_rate 5.0e-6 \\
        --max_length 512 --num_processes 2 --accelerate_config zero2 --output_dir out/pairs --logging_steps 5 \\
        --ld_alpha 0.5 --no_remove_unused_columns --bf16 --some_new_option a b";
    let imported = import(line).unwrap();
    let node = json_of(&imported);
    assert_eq!((imported.from, &node["data"]["train"][0]["path"]), ("TRL", &json!("hf://datasets/org/pairs")));
    assert_eq!(node["train"]["preference"], json!({"loss": "ipo", "beta": 0.3}));
    let lora = &node["model"]["foundation"]["lora"];
    assert_eq!(
        (lora["r"].as_u64(), lora["alpha"].as_f64(), lora["dropout"].as_f64()),
        (Some(8), Some(32.0), Some(0.05))
    );
    let train = &node["train"];
    assert_eq!((&train["global_batch_size"], train["epochs"].as_f64()), (&json!(16), Some(3.0)), "of two processes");
    assert_eq!((&node["pools"]["foundation"]["zero"], &node["data"]["pack"]["max_tokens"]), (&json!(2), &json!(512)));
    assert_eq!(missing(&imported), ["--ld_alpha", "--some_new_option"]);
    assert_eq!(imported.keys.len(), 18);
    let unused = imported.keys.iter().find(|key| key.key == "--no_remove_unused_columns").unwrap();
    assert_eq!(unused.fate, Fate::Settled(super::trainer::UNREAD));
    // The same words from a shell.
    let words: Vec<String> = line.replace("\\\n", "").split_whitespace().map(str::to_owned).collect();
    assert_eq!(import_words(&words).unwrap().yaml, imported.yaml);

    let yaml = "model_name_or_path: org/model-1B\ndatasets:\n  - path: org/a\n  - path: org/b\nassistant_only_loss: true\n\
        learning_rate: 1e-4\npacking: true\nmax_length: 256\nload_in_4bit: true\n";
    let imported = import(yaml).unwrap();
    let node = json_of(&imported);
    assert_eq!((imported.from, &node["train"]["phase"], &node["train"]["lr"]), ("TRL", &json!("sft"), &json!(1e-4)));
    assert_eq!(node["data"]["train"], json!([{"path": "hf://datasets/org/a"}, {"path": "hf://datasets/org/b"}]));
    assert_eq!((missing(&imported), imported.keys.len()), (vec!["load_in_4bit"], 7));
    assert!(arrived(&imported).contains(&"assistant_only_loss"));
}

#[test]
fn trls_kto_arrives_from_every_kind_of_command() {
    let options = "--model_name_or_path org/m-1B --dataset_name org/labeled --per_device_train_batch_size 16 \
        --gradient_accumulation_steps 2 --beta 0.2 --desirable_weight 1.5 --max_length 512 --loss_type kto --learning_rate 5e-7";
    let commands =
        ["trl kto", "python -m trl kto", "python -m trl.scripts.kto", "accelerate launch trl/scripts/kto.py"];
    for command in commands {
        let imported = import(&format!("{command} {options}")).unwrap();
        let node = json_of(&imported);
        let preference = json!({"loss": "kto", "beta": 0.2, "desirable_weight": 1.5, "group_size": 16});
        assert_eq!((&node["train"]["preference"], &node["train"]["global_batch_size"]), (&preference, &json!(2)));
        assert_eq!(missing(&imported), [""; 0], "{command}");
    }
    let yaml = "model_name_or_path: org/m\ndataset_name: org/labeled\nundesirable_weight: 0.5\nmax_length: 64\n";
    let node = json_of(&import(yaml).unwrap());
    assert_eq!(node["train"]["preference"]["loss"], json!("kto"));
}

#[test]
fn what_trains_nothing_is_refused_with_a_reason() {
    for (text, part) in [
        ("#!/bin/bash\necho \"unfinished --lr 3\n", "is not closed"),
        ("#!/bin/bash\nls --all\n", "it contains no training command"),
        ("trl grpo --model_name_or_path x --dataset_name y", "`grpo` has no counterpart"),
        ("python examples/scripts/dpo_online.py --model_name_or_path x", "`online_dpo` has no counterpart"),
        ("python examples/scripts/gkd.py --model_name_or_path x", "`gkd` has no counterpart"),
        ("python examples/scripts/mpo_vlm.py --model_name_or_path x", "`mpo` has no counterpart"),
        (
            "model_name_or_path: x\ndataset_name: y\nreward_funcs: [accuracy_reward]\n",
            "`reward_funcs` belongs to TRL's reinforcement learning methods",
        ),
        ("trl env --verbose x", "it contains no training command"),
        (
            "torchrun run_text_generation.py --micro-batch-size 1 --tensor-model-parallel-size 4 --out-seq-length 512",
            "it contains no training command",
        ),
        (
            "python tools/convert.py --tensor_model_parallel_size 4 --load_platform huggingface --save_platform mcore",
            "it contains no training command",
        ),
        // A value that doubles and doubles.
        (&format!("#!/bin/bash\nA=aaaaaaaa\n{}", "A=$A$A\n".repeat(64)), "a value of the script is too large"),
        (&format!("#!/bin/bash\nA={}x{}\n", "${B:-".repeat(64), "}".repeat(64)), "nested too deeply"),
    ] {
        let error = import(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(import_words(&["ls".to_owned()]).is_err());
    for (line, part) in [
        ("llamafactory-cli train examples/a.yaml", "`loongforge import examples/a.yaml`"),
        ("FORCE_TORCHRUN=1 axolotl train my.yml", "`loongforge import my.yml`"),
        (
            "lerobot-train --policy.type=pi05 --config_path out/train_config.json",
            "`loongforge import out/train_config.json`",
        ),
        (
            "accelerate launch examples/dreambooth/train_dreambooth_lora_flux.py --pretrained_model_name_or_path=a/b --rank=4",
            "the diffusion script `train_dreambooth_lora_flux.py` is not translated",
        ),
        ("MEM=0.9 uv run scripts/train.py pi05_libero --exp-name=a --overwrite", "openpi's config `pi05_libero`"),
        ("torchrun scripts/train_pytorch.py pi0_aloha_sim --exp_name a", "openpi's config `pi0_aloha_sim`"),
    ] {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        for error in [import(line), import_words(&words)].map(|imported| imported.unwrap_err().to_string()) {
            assert!(error.contains(part), "{error}");
        }
    }
}

/// LLaMA-Factory's arguments are the keys of its YAML.
#[test]
fn llama_factorys_command_lines_arrive() {
    let options = "--stage sft --do_train True --model_name_or_path org/m --dataset a,b --template qwen --lora_target q_proj,v_proj \
        --output_dir out/sft --per_device_train_batch_size 2 --nproc 3 --fp16";
    for command in ["llamafactory-cli train", "python src/train_bash.py", "deepspeed --num_gpus 1 src/train.py"] {
        let imported = import(&format!("{command} {options}")).unwrap();
        let node = json_of(&imported);
        assert_eq!((imported.from, &node["model"]["load"]), ("LLaMA-Factory", &json!("org/m")), "{command}");
        assert_eq!(node["data"]["train"], json!([{ "path": "data/a.json" }, { "path": "data/b.json" }]));
        assert_eq!(node["model"]["foundation"]["lora"]["target_modules"], json!(["q_proj", "v_proj"]));
        assert!(["--fp16", "--nproc"].iter().all(|key| missing(&imported).contains(key)), "{:?}", imported.keys);
    }
    let refused = import("llamafactory-cli train --stage ppo --model_name_or_path org/m").unwrap_err().to_string();
    assert!(refused.contains("`ppo` has no counterpart"), "{refused}");
}

#[test]
fn keys_of_a_config_of_llama_factory_are_replaced_by_those_of_its_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sft.yaml");
    std::fs::write(&path, "model_name_or_path: org/m\nstage: sft\nlora_rank: 8\ndataset: a\n").unwrap();
    let command = format!("llamafactory-cli train {} lora_rank=16 learning_rate=1e-5 stray", path.display());
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    for imported in [import(&command), import_words(&words)].map(Result::unwrap) {
        let node = json_of(&imported);
        assert_eq!((imported.from, &node["model"]["load"]), ("LLaMA-Factory", &json!("org/m")));
        assert_eq!((&node["model"]["foundation"]["lora"]["r"], &node["train"]["lr"]), (&json!(16), &json!(1e-5)));
        assert!(missing(&imported).contains(&"stray"), "{:?}", imported.keys);
        assert!(arrived(&imported).contains(&"lora_rank"), "{:?}", imported.keys);
    }
}

#[test]
fn lists_that_may_be_empty_and_wandb_arrive() {
    let script = "ARGS=(--train-iters 3 --optimizer muon --optimizer-cpu-offload --optimizer-offload-fraction 0.5); MORE=()\nMORE+=(--wandb-project \"p\" --wandb-exp-name n)\n\
        torchrun x/train.py \"${ARGS[@]+\"${ARGS[@]}\"}\" \"${MORE[@]:+\"${MORE[@]}\"}\"";
    let imported = import(script).unwrap();
    let node = json_of(&imported);
    assert_eq!((&node["train"]["steps"], &node["train"]["optimizer"]["type"]), (&json!(3), &json!("muon")));
    assert_eq!(node["train"]["optimizer"]["offload"], json!({"to": "cpu", "fraction": 0.5}));
    assert_eq!(node["log"]["wandb"], json!({"project": "p", "name": "n"}));
    assert_eq!(missing(&imported), [""; 0]);
    // A share of nothing.
    let none = import(&script.replace("0.5", "0")).unwrap();
    let node = json_of(&none);
    assert_eq!((&node["train"]["optimizer"]["offload"], missing(&none)), (&json!(null), vec![]));
}

#[test]
fn profiles_arrive_where_they_are_asked_for() {
    let profile = |flags: &str| {
        let imported = import(&format!("torchrun x/train.py --train-iters 30 {flags}")).unwrap();
        let node = json_of(&imported);
        (node["watch"]["profile"].clone(), missing(&imported).into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(profile("--profile"), (json!({"first": 11, "steps": 2}), vec![]));
    let some = "--profile-step-start 4 --profile-step-end 9 --profile-ranks 0 1";
    assert_eq!(profile(&format!("--profile {some}")), (json!({"first": 5, "steps": 5}), vec![]));
    assert_eq!(profile(some), (json!(null), vec![]));
    // From the first step, none, and beyond the last one.
    for (start, end) in [(0, 2), (9, 9), (29, 31)] {
        let keys = ["--profile", "--profile-step-start", "--profile-step-end"].map(str::to_owned).to_vec();
        let mut found = profile(&format!("--profile --profile-step-start {start} --profile-step-end {end}"));
        found.1.sort_by_key(|key| keys.iter().position(|other| other == key));
        assert_eq!(found, (json!(null), keys));
    }
}

#[test]
fn programs_in_python_are_told_how_their_arguments_are_imported() {
    let program = "from datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\n\
                   args = SFTConfig(output_dir=\"out\", max_length=512)\n# of the option --max_length\nSFTTrainer(args).train()\n";
    for text in [program, "#!/usr/bin/env python3\nimport os, torch\nprint(1)\n"] {
        let error = import(text).unwrap_err();
        assert!(matches!(error, ImportError::Python), "{error}");
        assert!(error.to_string().contains("loongforge import -- trl sft"), "{error}");
    }
    let script = "#!/bin/bash\npython - <<E\nimport os\nE\n";
    let error = import(script).unwrap_err();
    assert!(!matches!(error, ImportError::Python), "a script of a shell may have a program in it: {error}");
}

/// The script repeats a word as often as the size limit of a file permits.
#[test]
fn many_redirections_and_keywords_take_no_stack() {
    for words in ["1>a ", "then ", "{ "] {
        let error = import(&format!("#!/bin/sh\n{}\n", words.repeat((1 << 20) / words.len()))).unwrap_err();
        assert!(matches!(error, ImportError::Script(_)), "{words:?}: {error}");
    }
}
