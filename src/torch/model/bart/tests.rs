//! Tests of Florence-2 beside the comparison with the reference (`tests/parity.rs`), on fixtures that `tests/oracle/make_florence.py`
//! makes. `LOONGFORGE_FLORENCE` names another folder of fixtures.

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::fixture::Fixture;
use super::network::EncoderDecoder;
use crate::model::batch::MicroBatch;
use crate::model::config::ModelConfig;
use crate::model::fixture::{self, json};
use crate::tape::{Execution, Policy};

fn fixtures() -> Vec<(String, Fixture)> {
    fixture::open(&fixture::folders("florence", &["florence2"]), |folder| Fixture::read(folder, Kind::Float))
}

/// The token of pictures is a token as any other in an answer, and its row is not that of padding.
#[test]
fn an_answer_may_have_the_token_of_pictures() {
    for (name, fixture) in fixtures() {
        let config = fixture.model.foundation.as_encoder_decoder().unwrap();
        let network = EncoderDecoder::new(config, &fixture.params, Policy::Keep);
        let image = config.image_token.unwrap();
        let row = network.tokens.part.look_up(&Tensor::from_slice(&[image]));
        assert_eq!(row, network.tokens.part.table().narrow(0, image, 1) * config.bart.scale, "{name}");
    }
}

/// A rank that has nothing to learn records every parameter, and its loss and gradients are zero.
#[test]
fn a_sample_without_an_answer_counts_for_nothing() {
    for (_, fixture) in fixtures() {
        let model = fixture.model.foundation.build(&fixture.params, Policy::Keep);
        let filler = MicroBatch::filler(model.columns(), Device::Cpu);
        let tape = model.record(&filler);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
        run.forward().unwrap();
        assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        for id in fixture.params.trained_ids() {
            assert_eq!(grads.view(id).abs().max().double_value(&[]), 0.0, "{}", fixture.params.spec(id).name);
        }
    }
}

/// Without a `generation_config.json`, transformers 5.17 forces the tokens that the config names, and not the defaults of its class.
#[test]
fn forced_tokens_are_those_of_the_config() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/florence/florence2-seed1/config.json");
    let forced = |change: &dyn Fn(&mut Value)| {
        let mut config = json(&folder).unwrap();
        change(&mut config["text_config"]);
        let answers = ModelConfig::from_hf(&config).unwrap().foundation.as_encoder_decoder().unwrap().answers;
        (answers.first, answers.last)
    };
    assert_eq!(forced(&|_| {}), (Some(0), Some(2)));
    assert_eq!(forced(&|text| text["forced_eos_token_id"] = Value::Null), (Some(0), None));
    assert_eq!(forced(&|text| drop(text.as_object_mut().unwrap().remove("forced_eos_token_id"))), (Some(0), None));
}

/// The first release says which repository to take in its place.
#[test]
fn the_first_release_is_refused_with_advice() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/florence/florence2-seed1/config.json");
    let mut config = json(&folder).unwrap();
    config.as_object_mut().unwrap().remove("image_token_id");
    config["text_config"]["model_type"] = "florence2_language".into();
    let message = ModelConfig::from_hf(&config).unwrap_err().to_string();
    assert!(message.contains("florence-community/Florence-2-base"), "{message}");
}

#[test]
fn configs_that_are_not_implemented_are_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/florence/florence2-seed1/config.json");
    let read = |pointer: &str, key: &str, value: Value| {
        let mut config = json(&folder).unwrap();
        config.pointer_mut(pointer).unwrap()[key] = value;
        ModelConfig::from_hf(&config).unwrap_err().to_string()
    };
    for (pointer, key, value, expected) in [
        (
            "",
            "image_token_id",
            Value::from(40),
            "image_token_id is 40, but must be below the decoder's vocab_size (40)",
        ),
        ("", "tie_word_embeddings", Value::from(false), "tie_word_embeddings is false"),
        ("/text_config", "model_type", Value::from("mbart"), "text_config.model_type is \"mbart\""),
        ("/text_config", "decoder_attention_heads", Value::from(5), "text_config.decoder_attention_heads is 5"),
        ("/text_config", "decoder_layerdrop", Value::from(0.1), "text_config.decoder_layerdrop is 0.1"),
        ("/text_config", "decoder_start_token_id", Value::from(99), "text_config.decoder_start_token_id is 99"),
        ("/text_config", "d_model", Value::from(24), "must be vision_config.projection_dim (12)"),
        ("/vision_config", "drop_path_rate", Value::from(1.5), "vision_config.drop_path_rate is 1.5"),
    ] {
        let message = read(pointer, key, value);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}
