//! Dense decoders and mixtures of experts under memory plans: the same bits as without.

use std::rc::Rc;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use crate::model::{Balance, Decoder, ModelConfig, Targets, TextBatch, TextOptions};
use crate::nn::Mask;
use crate::params::ParamStore;
use crate::tape::{Execution, MemoryPlanner, Policy, Transfers};

const TOKENS: i64 = 24;

fn decoder(config: serde_json::Value, kind: Kind) -> (Decoder, Rc<ParamStore>) {
    let mut config = ModelConfig::from_hf(&config).unwrap().decoder().unwrap().clone();
    config.balance = Balance { aux_loss_coef: 0.1, z_loss_coef: 0.01, bias_update_rate: 0.0 };
    let params = Rc::new(ParamStore::new(Decoder::specs(&config), kind, Device::Cpu));
    params.init_random(5);
    (Decoder::new(&config, &params), params)
}

/// Returns the loss and gradient of one row of two documents.
fn step(model: &Decoder, params: &Rc<ParamStore>, planner: Option<&mut MemoryPlanner>) -> (f64, Tensor) {
    let ids: Vec<i64> = (0..TOKENS).map(|at| at * 7 % 32).collect();
    let batch = TextBatch {
        input_ids: Tensor::from_slice(&ids),
        position_ids: Tensor::from_slice(&(0..TOKENS).map(|at| if at < 9 { at } else { at - 9 }).collect::<Vec<_>>()),
        cu_seqlens: vec![0, 9, TOKENS as usize],
        mask: Mask::Causal,
        feature_rows: vec![],
        row: None,
        past: None,
        shared: None,
    };
    let targets = Targets {
        labels: ids.iter().map(|id| (id + 1) % 32).collect(),
        weights: None,
        scale: 1.0 / TOKENS as f64,
        evaluates: false,
        answers: None,
        noise: None,
    };
    let (policy, keep_routing) = (Policy::Keep, false);
    let options = TextOptions { feature_tensors: Vec::new(), train_features: false, policy, keep_routing };
    let made = model.tape(&batch, Some(&targets), &options);
    let (tape, loss) = (Rc::new(made.tape), made.loss.unwrap());
    let mut planner = planner;
    let mut run = match &mut planner {
        Some(planner) => planner.execution(tape, params.clone(), vec![], TOKENS, 1).unwrap(),
        None => Execution::new(tape, params.clone(), vec![]),
    };
    run.forward().unwrap();
    run.seed(loss, Tensor::from(1.0));
    let mut grads = params.new_grad();
    run.backward(Some(&mut grads)).unwrap();
    if let Some(planner) = planner {
        planner.learn(&run, TOKENS);
    }
    (run.value(loss).double_value(&[]), grads.flat().shallow_clone())
}

#[test]
fn plans_do_not_move_a_bit() {
    let dense = json!({
        "model_type": "qwen3", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8
    });
    let experts = json!({
        "model_type": "minimax_m2", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "num_local_experts": 4, "num_experts_per_tok": 2
    });
    for (config, kind) in [(&dense, Kind::Float), (&dense, Kind::BFloat16), (&experts, Kind::Float)] {
        let (model, params) = decoder(config.clone(), kind);
        let expected = step(&model, &params, None);
        let mut all = MemoryPlanner::new(1 << 40, None);
        (0..3).for_each(|_| assert_eq!(step(&model, &params, Some(&mut all)), expected));
        let transfers = Rc::new(Transfers::new(Device::Cpu, Some(1e8)).unwrap());
        for share in [70, 45] {
            let mut planner = MemoryPlanner::new(all.peak() * share / 100, Some(transfers.clone()));
            (0..4).for_each(|_| assert_eq!(step(&model, &params, Some(&mut planner)), expected, "{share} %"));
            assert!(planner.peak() <= all.peak() * share / 100, "{} of {}", planner.peak(), all.peak());
        }
    }
}
