//! The loss of `trl dpo`: one that has a counterpart, alone or beside the likelihood of the chosen answers.

use serde_json::Value;

use super::sheet::Sheet;

/// Losses whose counterparts have the same names.
const KNOWN: [&str; 6] = ["sigmoid", "hinge", "ipo", "robust", "apo_zero", "apo_down"];
/// TRL's name for the negative log-likelihood of the chosen answers.
const LIKELIHOOD: &str = "sft";

/// Translates `loss_type` and `loss_weights`, each a list or its only element.
pub(super) fn read(sheet: &mut Sheet) {
    let types: Vec<String> = match sheet.get("loss_type") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(value) => value.as_str().map(str::to_owned).into_iter().collect(),
        None => vec!["sigmoid".to_owned()],
    };
    let weights: Option<Vec<f64>> = match sheet.get("loss_weights") {
        Some(Value::Array(list)) => list.iter().map(Value::as_f64).collect(),
        Some(value) => value.as_f64().map(|weight| vec![weight]),
        // Their default.
        None => Some(vec![1.0; types.len()]),
    };
    let weights = weights.filter(|weights| weights.len() == types.len()).unwrap_or_default();
    let weighted: Vec<(&str, f64)> = types.iter().map(String::as_str).zip(weights).collect();
    let found = match weighted[..] {
        [(loss, weight)] => Some((loss, weight, 0.0)),
        [(LIKELIHOOD, likelihood), (loss, weight)] | [(loss, weight), (LIKELIHOOD, likelihood)] => {
            Some((loss, weight, likelihood))
        }
        _ => None,
    };
    match found.filter(|(loss, weight, likelihood)| KNOWN.contains(loss) && *weight > 0.0 && *likelihood >= 0.0) {
        Some((loss, weight, likelihood)) => {
            sheet.set("train.preference.loss", loss);
            sheet.arrived("loss_type", "train.preference.loss");
            if likelihood > 0.0 {
                sheet.set("train.preference.nll_weight", likelihood / weight);
                sheet.arrived("loss_weights", "train.preference.nll_weight");
            }
            if weight != 1.0 {
                sheet.note(
                    "TRL multiplies the loss of pairs by its weight in loss_weights; here that weight is 1, and \
                     train.preference.nll_weight is relative to it: gradients differ by this factor before \
                     train.clip_grad",
                );
            }
            sheet.arrived("loss_weights", "train.preference.loss");
        }
        None => {
            sheet.set("train.preference.loss", "sigmoid");
            sheet.missing(
                "train.preference.loss must be sigmoid, hinge, ipo, robust, apo_zero or apo_down, alone or beside sft; \
                 sigmoid is used instead",
                &["loss_type"],
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::import;
    use super::super::tests::{json_of, missing};

    #[test]
    fn a_loss_beside_the_likelihood_of_chosen_answers_arrives() {
        let of = |options: &str| {
            let imported =
                import(&format!("trl dpo --model_name_or_path a/b --dataset_name x/y --beta 0.1 {options}")).unwrap();
            let loss = json_of(&imported)["train"]["preference"].clone();
            (loss, missing(&imported).join(" "), imported.notes.iter().any(|note| note.contains("loss_weights")))
        };
        let with = |loss: &str, weight: Value| json!({ "loss": loss, "beta": 0.1, "nll_weight": weight });
        let alone = |loss: &str| json!({ "loss": loss, "beta": 0.1 });
        let none = String::new;
        assert_eq!(of("--loss_type sigmoid sft --loss_weights 1.0 0.5"), (with("sigmoid", json!(0.5)), none(), false));
        assert_eq!(of("--loss_type sft ipo"), (with("ipo", json!(1.0)), none(), false), "weights are 1 by default");
        assert_eq!(of("--loss_type hinge sft --loss_weights 2 1"), (with("hinge", json!(0.5)), none(), true));
        assert_eq!(of("--loss_type robust"), (alone("robust"), none(), false));
        assert_eq!(of("--loss_type robust --loss_weights 1"), (alone("robust"), none(), false));
        for (options, left) in [
            ("--loss_type sft", "--loss_type"),
            ("--loss_type bco_pair sft --loss_weights 1 1", "--loss_type --loss_weights"),
            ("--loss_type sigmoid bco_pair sft --loss_weights 0.8 0.2 1.0", "--loss_type --loss_weights"),
            ("--loss_type sigmoid sft --loss_weights 1", "--loss_type --loss_weights"),
        ] {
            assert_eq!(of(options), (alone("sigmoid"), left.to_owned(), false), "{options}");
        }
    }
}
