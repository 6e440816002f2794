//! Greedy answers of fixtures on several ranks.

use super::*;
use loongforge_torch::model::{ModelConfig, Stage, generate, generate_each};
use tch::Tensor;

/// Returns a fixture's folder and config.
fn fixture(name: &str) -> (PathBuf, ModelConfig) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/tests/fixtures").join(name);
    let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    (folder, ModelConfig::from_hf(&config).unwrap())
}

/// Returns prompts of unequal length; the first has features of a picture where the model has a tower.
fn prompts(config: &ModelConfig) -> Vec<Prompt> {
    let decoder = config.decoder().unwrap();
    let prompt = |ids: Vec<i64>, is_pictured: bool| {
        let positions = Tensor::arange(ids.len() as i64, (Kind::Float, Device::Cpu));
        let values = Tensor::arange(2 * decoder.hidden_size, (Kind::Float, Device::Cpu)).sin();
        let levels = |num: usize| (0..num).map(|_| values.view([2, -1])).collect::<Vec<_>>();
        let inputs = config.inputs().iter().map(|input| levels(input.num_tensors));
        Prompt {
            position_ids: match decoder.has_three_axes() {
                true => positions.unsqueeze(0).expand([3, -1], false),
                false => positions,
            },
            feature_rows: config.inputs().iter().map(|_| if is_pictured { vec![1, 2] } else { vec![] }).collect(),
            features: inputs.map(|levels| if is_pictured { levels } else { vec![] }).collect(),
            input_ids: ids,
        }
    };
    vec![prompt(vec![5, 9, 9, 14, 33], true), prompt(vec![40, 7], false)]
}

fn decoding(max_new_tokens: usize) -> Decoding {
    Decoding { max_new_tokens, ..Decoding::default() }
}

fn on_ranks(name: &str, kind: Kind, num: usize) -> Result<[Vec<Vec<i64>>; 2]> {
    let ((folder, config), decoding) = (fixture(name), decoding(10));
    let (part, ranks) = Ranks::start(config.decoder().unwrap(), &folder, kind, &vec![Device::Cpu; num])?;
    // Twice, since ranks must be in step behind an answer.
    let answer = |_: usize| -> Result<Vec<Vec<i64>>> {
        let mut found = vec![Vec::new(); 2];
        ranks.continue_each(
            &part.decoder,
            &prompts(&config),
            &[decoding.clone(), decoding.clone()],
            &mut |at, next| {
                if let Continued::Token(token) = next {
                    found[at].push(token);
                }
                // The second one is not heard to its end.
                at == 0 || found[at].len() < 4
            },
        )?;
        Ok(found)
    };
    Ok([answer(0)?, answer(1)?])
}

fn alone(name: &str, kind: Kind) -> Vec<Vec<i64>> {
    let (folder, config) = fixture(name);
    let params = ParamStore::new(Decoder::specs(config.decoder().unwrap()), kind, Device::Cpu);
    load_weights(&params, &folder).unwrap();
    let mut tokens = generate(&Decoder::new(config.decoder().unwrap(), &params), &prompts(&config), &decoding(10));
    tokens[1].truncate(4);
    tokens
}

/// Key heads that ranks share, experts, latent attention, gated delta nets, DeepStack's features, capped scores, mixers that need
/// all heads, several streams of the residual.
#[test]
fn greedy_answers_are_those_of_one_rank() {
    set_intra_op_threads(1);
    for (name, ranks) in [
        ("qwen3-seed1", 2),
        ("qwen3-yarn-bias", 4),
        ("deepseek_v3-seed1", 2),
        ("minicpm_v4.6-seed1", 2),
        ("qwen3_vl-seed1", 2),
        ("gemma2-seed1", 2),
        ("minimax_m2-seed1", 2),
        ("deepseek_v4-seed1", 2),
        ("ernie4.5_moe-bias", 2),
    ] {
        let expected = alone(name, Kind::Float);
        for found in on_ranks(name, Kind::Float, ranks).unwrap() {
            assert_eq!(found, expected, "{name}");
        }
    }
}

/// Layers of every kind of mixer, DeepStack's features behind a stage's end, tied and untied heads, a cache that is made anew where a
/// rotary embedding changes with length. One device stands for all.
#[test]
fn stages_answer_as_the_whole_model_does() {
    for (name, num) in [
        ("qwen3-seed1", 2),
        ("qwen3_vl-seed1", 2),
        ("gemma2-seed1", 2),
        ("minimax_m2-seed1", 2),
        ("deepseek_v3-seed1", 2),
        ("ernie4.5_moe-bias", 2),
    ] {
        let (folder, config) = fixture(name);
        let decoder = config.decoder().unwrap();
        let num_layers = decoder.num_layers();
        let stages = Stage::all(vec![0..num_layers - num + 1, num_layers - num + 1..num_layers]);
        let stage = |stage: Stage| {
            let params = ParamStore::new(Decoder::stage_specs(decoder, &stage), Kind::Float, Device::Cpu);
            load_weights(&params, &folder).unwrap();
            Decoder::stage(decoder, stage, &params)
        };
        let stages: Vec<Decoder> = stages.into_iter().map(stage).collect();
        let (mut found, decoding) = (vec![Vec::new(); 2], decoding(10));
        generate_each(&stages, &prompts(&config), &[&decoding, &decoding], &mut |at, next| {
            if let Continued::Token(token) = next {
                found[at].push(token);
            }
            at == 0 || found[at].len() < 4
        });
        assert_eq!(found, alone(name, Kind::Float), "{name}");
    }
}

/// Sums of parts round otherwise than one product, so that later tokens of a random model may be others: the first ones are not.
#[test]
fn bf16_begins_alike() {
    set_intra_op_threads(1);
    let [first, again] = on_ranks("qwen3-seed1", Kind::BFloat16, 2).unwrap();
    assert_eq!(first, again);
    let expected = alone("qwen3-seed1", Kind::BFloat16);
    assert_eq!((first[0][0], first[1][0]), (expected[0][0], expected[1][0]));
}

#[test]
fn what_does_not_divide_is_named() {
    let error = on_ranks("qwen3-seed1", Kind::Float, 3).unwrap_err().to_string();
    assert!(error.contains("--tensor-parallel: num_attention_heads is 4"), "{error}");
}
