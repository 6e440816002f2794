//! A custom foundation with its objective, and a custom sample maker, in a program with all commands of `loongforge`.
//!
//!     cargo run --example own_foundation -- run examples/own_foundation.yaml --processes

use loongforge::cli::main_with;
use loongforge::compose::{Families, FoundationFamily, FoundationModel, FoundationPart, FoundationTape, MicroBatch};
use loongforge::compose::{Init, ParamSpec, ParamStore, Policy, Tape, Tensor};
use loongforge::core::config::Phase;
use loongforge::core::data::{Content, DataError, IGNORE_INDEX, Part, Sample, SampleMaker, Source};
use loongforge::core::message::SampleId;
use loongforge::torch::model::{Column, FeatureInput, FoundationShape, INPUT_IDS, TARGETS, token_columns};
use std::path::Path;
use std::rc::Rc;

/// The scores of the next token follow from the last one alone: a table of embeddings and a head.
#[derive(Debug)]
struct Bigram {
    names: [String; 2],
    vocab_size: i64,
    width: i64,
    /// The part of a target's weight that all tokens share: this model's own objective.
    smoothing: f64,
}

impl Bigram {
    fn read(part: FoundationPart<'_>) -> Result<Self, String> {
        if !part.inputs.is_empty() {
            return Err("it takes no features".to_owned());
        }
        let size = |key: &str| part.config[key].as_i64().ok_or(format!("{key} must be a number"));
        let smoothing = part.config["label_smoothing"].as_f64().unwrap_or(0.0);
        let names = ["embed.weight", "head.weight"].map(|name| format!("{}{name}", part.prefix));
        Ok(Self { names, vocab_size: size("vocab_size")?, width: size("hidden_size")?, smoothing })
    }
}

impl FoundationFamily for Bigram {
    fn specs(&self) -> Vec<ParamSpec> {
        let shape = [self.vocab_size, self.width];
        self.names.iter().map(|name| ParamSpec::new(name, &shape, Init::Normal(0.05))).collect()
    }

    fn inputs(&self) -> &[FeatureInput] {
        &[]
    }

    fn columns(&self) -> Vec<Column> {
        token_columns()
    }

    fn shape(&self) -> FoundationShape {
        let aside = vec![self.names[0].clone()];
        let (width, even_length) = (self.width, i64::MAX);
        FoundationShape { width, is_causal: true, attention: 0.0, even_length, expert_share: 1.0, aside }
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        let weights = self.names.each_ref().map(|name| params.get(name));
        let ids = self.names.each_ref().map(|name| params.id(name));
        Box::new(Model { weights, ids, columns: token_columns().into(), smoothing: self.smoothing, policy })
    }
}

struct Model {
    weights: [Tensor; 2],
    ids: [loongforge::compose::ParamId; 2],
    columns: Rc<[Column]>,
    smoothing: f64,
    policy: Policy,
}

impl FoundationModel for Model {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &[]
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        let mut tape = Tape::new();
        let [embed, head] = self.weights.each_ref().map(Tensor::shallow_clone);
        let [tokens, targets] = [INPUT_IDS, TARGETS].map(|name| batch.columns.get(name).shallow_clone());
        let look_up = move |_: &[Tensor]| vec![Tensor::embedding(&embed, &tokens, -1, false, false)];
        let hidden = tape.run("embed", &self.ids[..1], self.policy, &[], 1, look_up)[0];
        let (scale, evaluates) = (batch.loss_scale, batch.evaluates);
        let smoothing = if evaluates { 0.0 } else { self.smoothing };
        let counted = targets.ne(IGNORE_INDEX);
        let score = move |read: &[Tensor]| {
            let scores = read[0].linear(&head, None::<&Tensor>).to_kind(tch::Kind::Float);
            let sum =
                scores.cross_entropy_loss(&targets, None::<&Tensor>, tch::Reduction::Sum, IGNORE_INDEX, smoothing);
            let best = evaluates.then(|| scores.argmax(-1, false).masked_select(&counted));
            std::iter::once(sum.to_kind(tch::Kind::Double) * scale).chain(best).collect()
        };
        let num_outputs = if evaluates { 2 } else { 1 };
        let made = tape.run("score", &self.ids[1..], self.policy, &[hidden], num_outputs, score);
        made.iter().for_each(|slot| tape.keep(*slot));
        FoundationTape {
            tape: Rc::new(tape),
            features: Vec::new(),
            loss: Some(made[0]),
            predicted: made.get(1).copied(),
            measures: None,
            inbound: Vec::new(),
            outbound: Vec::new(),
            key_values: Vec::new(),
            routing: None,
        }
    }
}

/// The built-in maker of samples, whose conversations are in capitals.
struct Shouted(Box<dyn SampleMaker>);

impl Shouted {
    fn shout(record: &Content) -> Result<Content, DataError> {
        let Content::Messages(conversation) = record else {
            return Err(DataError::own("`shouted` reads conversations alone"));
        };
        let mut conversation = conversation.clone();
        for part in conversation.turns.iter_mut().flat_map(|turn| &mut turn.parts) {
            if let Part::Text { text } = part {
                *text = text.to_uppercase();
            }
        }
        Ok(Content::Messages(conversation))
    }
}

impl SampleMaker for Shouted {
    fn make(&self, id: SampleId, record: &Content, base: &Path) -> Result<Sample, DataError> {
        self.0.make(id, &Self::shout(record)?, base)
    }

    fn prompt(&self, id: SampleId, record: Content, base: &Path) -> Result<Sample, String> {
        self.0.prompt(id, Self::shout(&record).map_err(|error| error.to_string())?, base)
    }

    fn check(&self, source: &Source) -> Result<(), DataError> {
        self.0.check(source)
    }

    fn phase(&self) -> Phase {
        self.0.phase()
    }

    fn num_tokens(&self, text: &str) -> usize {
        self.0.num_tokens(text)
    }

    fn decodes(&self) -> bool {
        self.0.decodes()
    }

    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }
}

fn main() -> std::process::ExitCode {
    let families = Families::new().foundation("bigram", Bigram::read);
    main_with(families.sample_maker("shouted", |_, built_in| Ok(Box::new(Shouted(built_in()?)))))
}
