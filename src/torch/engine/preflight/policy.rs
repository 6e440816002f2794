//! Describes whether a robot policy can learn and act as its settings ask.

use crate::engine::trained::trained_foundation;
use crate::model::{ModelConfig, RobotPolicy};
use crate::params::{ParamSpec, Role};
use loongforge_core::config::{Part, RunConfig};
use loongforge_core::engine::EngineError;
use loongforge_core::message::Tower;

/// Checks the settings of a policy; every other model passes. `foundation` and `towers` are the parameters of the whole model,
/// with what is trained of them.
///
/// # Errors
/// The policy cannot do what is asked for, or no loss would train a part; the error names the key.
pub(super) fn check(
    config: &RunConfig,
    model: &ModelConfig,
    foundation: &[ParamSpec],
    towers: &[ParamSpec],
) -> Result<(), EngineError> {
    let Some(policy) = model.foundation.as_policy() else { return Ok(()) };
    if let Some(reason) = policy.cannot() {
        return Err(reason.into());
    }
    check_apart(config, model, policy, towers)?;
    check_insulated(policy, foundation, towers)?;
    check_delay(policy)?;
    check_acting(config, policy)
}

/// A vision-language model with a pool of its own is one part, which is trained only as far as the policy's config has it.
fn check_apart(
    config: &RunConfig,
    model: &ModelConfig,
    policy: &dyn RobotPolicy,
    towers: &[ParamSpec],
) -> Result<(), EngineError> {
    let of_text = model.towers.get(Tower::Text).map(|family| family.specs()).unwrap_or_default();
    if !of_text.iter().any(|spec| policy.is_of_prefix(&spec.name)) {
        return Ok(());
    }
    let (keys, is_trained) = (&config.model, towers.iter().any(|spec| spec.role == Role::Trained));
    if keys.text_encoder.freeze == Some(false) && policy.freezes_tower() && !is_trained {
        return Err("model.text_encoder.freeze is false, but the config of the policy trains nothing of its vision-language model: \
                    set tune_llm, tune_visual or tune_top_llm_layers under model.overrides, or leave the key out"
            .into());
    }
    let parts = [("model.image_encoder", &keys.image_encoder), ("model.image_projector", &keys.image_projector)];
    match parts.into_iter().find(|(_, part)| is_trained && part.freeze == Some(true)) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "{key}.freeze: the image tower is within the vision-language model, which has a pool of its own and is trained as \
             tune_visual, tune_llm and tune_top_llm_layers under model.overrides say; leave the key out"
        )
        .into()),
    }
}

/// Returns a note on maps of states and actions that a run with adapters leaves as they are, though the model itself would train them:
/// those of robots that the model does not know have learned nothing.
pub fn untrained_maps(part: &Part, model: &ModelConfig) -> Option<String> {
    let (policy, _) = (model.foundation.as_policy()?, part.lora.as_ref()?);
    let whole = model.foundation.specs();
    let adapted = trained_foundation(whole.clone(), model, |_| ("model.foundation", part)).ok()?;
    let learns = |specs: &[ParamSpec], map: &str| {
        let part = format!(".{map}.");
        specs.iter().any(|spec| spec.role == Role::Trained && spec.name.contains(&part))
    };
    let is_untrained = |map: &&&str| learns(&whole, map) && !learns(&adapted, map);
    let maps: Vec<&str> = policy.maps_of_robot().iter().filter(is_untrained).copied().collect();
    (!maps.is_empty()).then(|| {
        format!(
            "model.foundation.lora leaves maps of states and actions as they are ({maps}); for a robot that the model was not trained on, \
             train them in full: model.foundation.lora.modules_to_save: [{maps}]",
            maps = maps.join(", ")
        )
    })
}

/// A policy whose prefix has no gradient of its actions learns there from tokens, or is frozen; what learns tokens is trained.
fn check_insulated(
    policy: &dyn RobotPolicy,
    foundation: &[ParamSpec],
    towers: &[ParamSpec],
) -> Result<(), EngineError> {
    let (insulate, learns) = (policy.options().insulate, policy.options().token_weight > 0.0);
    if insulate && policy.chunk().writes {
        return Err(
            "policy.insulate: Pi0-FAST has no action expert whose gradient could be blocked; leave the key out".into(),
        );
    }
    if !insulate && !learns {
        return Ok(());
    }
    let of_prefix = foundation.iter().filter(|spec| policy.is_of_prefix(&spec.name));
    let mut prefix = of_prefix.chain(towers);
    match (prefix.any(|spec| spec.role == Role::Trained), learns) {
        (false, true) => Err(
            "policy.token_weight: only the vision-language model learns from tokens, and no part of it is trained; \
                              train it, or set the weight to 0"
                .into(),
        ),
        (true, false) => {
            let why = "gradients of actions stop at the prefix, and policy.token_weight is 0";
            let how = "set policy.token_weight to train it on action tokens (pi05, pi0), freeze it with the keys of its config \
                       under model.overrides (Pi and SmolVLA: train_expert_only=true, SmolVLA train_state_proj=false as well; \
                       X-VLA: freeze_vision_encoder and freeze_language_encoder; GR00T: tune_llm=false and tune_visual=false), or \
                       leave insulate out";
            Err(format!("policy.insulate: {why}, so that nothing would train it; {how}").into())
        }
        (true, true) | (false, false) => Ok(()),
    }
}

/// A policy that is asked to act while the run goes on makes actions of noise.
fn check_acting(config: &RunConfig, policy: &dyn RobotPolicy) -> Result<(), EngineError> {
    let is_asked = config.eval.as_ref().and_then(|eval| eval.actions).is_some_and(|count| count > 0);
    if is_asked && policy.chunk().writes {
        return Err("eval.actions: Pi0-FAST writes actions as tokens and does not act during the run; leave the key out: actions are \
                    compared after the run in any case"
            .into());
    }
    Ok(())
}

/// A chunk that has begun can be gone on with, and something of it is left.
fn check_delay(policy: &dyn RobotPolicy) -> Result<(), EngineError> {
    let (most, horizon) = (policy.options().max_delay, policy.chunk().horizon);
    if most > 0 && !policy.continues_chunks() {
        let why = match policy.chunk().writes {
            true => "it writes actions as tokens",
            false => "all actions of a chunk share one noise time, and the given ones need another",
        };
        return Err(
            format!("policy.max_delay is {most}, but this policy cannot continue a chunk: {why} (Pi0.5 can)").into()
        );
    }
    match i64::from(most) < horizon {
        true => Ok(()),
        false => Err(format!(
            "policy.max_delay is {most}: a chunk has {horizon} actions, and at least one must be left to learn"
        )
        .into()),
    }
}
