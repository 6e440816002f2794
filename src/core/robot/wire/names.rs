//! Finds which field of a client is which part of an observation. No field is ignored silently: one that no rule knows is an error that
//! names it.

use super::array::Array;
use super::fields::Field;
use super::picture::picture;
use crate::robot::policy::{Observation, PolicySpec};
use image::RgbImage;

/// Names under which clients send the instruction.
const PROMPTS: [&str; 6] =
    ["prompt", "task", "task_description", "instruction", "instructions", "language_instruction"];

/// Bytes of an instruction at most: the policy splits all of it into tokens, whatever it reads of them.
const MAX_PROMPT: usize = 1 << 16;

/// Values of a field of the state or of actions at most: they take up to twelve times the memory of their bytes.
const MAX_NUMBERS: usize = 1 << 16;

/// The name under which clients send the actions that are being executed.
const BEGUN: &str = "action_prefix";

/// A part of an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// A camera, by its number among the policy's cameras.
    Camera(usize),
    State,
    Prompt,
    /// Actions of the chunk that are being executed.
    Begun,
    /// The field is not read.
    Nothing,
}

/// Rules of fields, made for one policy.
#[derive(Clone, Debug)]
pub struct Names {
    rules: Vec<(String, Part)>,
    /// Cameras that need not be there.
    without: Vec<usize>,
    prompt: Option<String>,
    spec: PolicySpec,
}

impl Names {
    /// `rules` are `FIELD=PART`, where a part is a camera, `state`, `prompt`, `action_prefix` or `-` for a field that is not read;
    /// several fields of the state are put end to end in the order of their rules. `without` are cameras that clients need not send,
    /// `prompt` what is read where they send none.
    ///
    /// # Errors
    /// The reason: a rule that is none, or a camera that the policy lacks.
    pub fn new(
        spec: &PolicySpec,
        rules: &[String],
        without: &[String],
        prompt: Option<String>,
    ) -> Result<Self, String> {
        let camera = |name: &str| {
            let is_named = |camera: &&String| **camera == name || short(camera) == name;
            let mut named = spec.cameras.iter().enumerate().filter(|(_, camera)| is_named(camera));
            match (named.next(), named.next()) {
                (Some((number, _)), None) => Ok(number),
                _ => Err(format!("`{name}` is not one of the policy's cameras ({})", spec.cameras.join(", "))),
            }
        };
        let rule = |text: &String| {
            let (field, part) =
                text.split_once('=').ok_or_else(|| format!("`{text}` must have the form FIELD=PART"))?;
            let part = match part {
                "state" => Part::State,
                "prompt" => Part::Prompt,
                BEGUN => Part::Begun,
                "-" => Part::Nothing,
                name => Part::Camera(camera(name)?),
            };
            Ok((field.to_owned(), part))
        };
        let rules: Vec<_> = rules.iter().map(rule).collect::<Result<_, String>>()?;
        if let Some((field, _)) =
            rules.iter().enumerate().find_map(|(at, rule)| rules[..at].iter().find(|before| before.0 == rule.0))
        {
            return Err(format!("the field `{field}` has two rules"));
        }
        let without = without.iter().map(|name| camera(name)).collect::<Result<_, _>>()?;
        Ok(Self { rules, without, prompt, spec: spec.clone() })
    }

    /// Returns the observation that a message's fields are.
    ///
    /// # Errors
    /// The reason: a field that no rule knows, one that is missing or there twice, or one of another kind or size.
    pub fn observation(&self, fields: &[(String, Field<'_>)]) -> Result<Observation, String> {
        let is_picture = |field: &Field<'_>| match field {
            Field::Array(array) => array.shape.len() == 3,
            field => matches!(field, Field::Encoded(_)),
        };
        let is_alone =
            self.spec.cameras.len() == 1 && fields.iter().filter(|(_, field)| is_picture(field)).count() == 1;
        let mut images: Vec<Option<RgbImage>> = vec![None; self.spec.cameras.len()];
        let (mut states, mut prompt, mut begun) = (Vec::new(), None, None);
        for (path, field) in fields {
            let at = |error: String| format!("{path}: {error}");
            let (rule, part) = self.part_of(path);
            match part.or_else(|| (is_alone && is_picture(field)).then_some(Part::Camera(0))) {
                Some(Part::Camera(number)) if images[number].is_none() => {
                    images[number] = Some(picture(field).map_err(at)?);
                }
                Some(Part::Prompt) if prompt.is_none() => match field {
                    Field::Text(text) if text.len() > MAX_PROMPT => {
                        return Err(at(format!("the prompt has {} bytes, more than {MAX_PROMPT}", text.len())));
                    }
                    Field::Text(text) => prompt = Some((*text).to_owned()),
                    _ => return Err(at("the prompt must be text".to_owned())),
                },
                Some(Part::State) => states.push((rule, numbers(field).map_err(at)?)),
                Some(Part::Begun) if begun.is_none() => begun = Some(self.begun(field).map_err(at)?),
                Some(Part::Nothing) => {}
                Some(_) => {
                    return Err(at("another field of the message is already this part of the observation".to_owned()));
                }
                None => {
                    return Err(format!(
                        "{path}: unknown field; name its part with serve-policy --map {path}=PART, or ignore it with {path}=-"
                    ));
                }
            }
        }
        let images =
            self.spec.cameras.iter().zip(images).enumerate().filter_map(|(number, (name, image))| match image {
                Some(image) => Some(Ok((name.clone(), image))),
                None if self.without.contains(&number) => None,
                None => Some(Err(format!(
                    "missing picture of {name} (serve-policy --map FIELD={name}, or --without {name})"
                ))),
            });
        let images = images.collect::<Result<_, String>>()?;
        let prompt = match prompt.or_else(|| self.prompt.clone()) {
            None if self.spec.reads_prompt => return Err("missing prompt, and the server has no --prompt".to_owned()),
            prompt => prompt.unwrap_or_default(),
        };
        Ok(Observation { images, state: self.state(states)?, prompt, begun: begun.unwrap_or_default() })
    }

    /// Returns whether some of these fields are actions that are being executed.
    pub fn has_begun(&self, fields: &[(String, Field<'_>)]) -> bool {
        fields.iter().any(|(path, _)| self.part_of(path).1 == Some(Part::Begun))
    }

    /// Returns the number of the rule for a field, and the part of an observation that the field is.
    fn part_of(&self, path: &str) -> (Option<usize>, Option<Part>) {
        let rule = self.rules.iter().position(|(name, _)| name == path);
        (rule, rule.map(|rule| self.rules[rule].1.clone()).or_else(|| self.usual(path)))
    }

    /// Returns the first actions of a chunk, `[steps, width]` or one after the other.
    fn begun(&self, field: &Field<'_>) -> Result<Vec<f32>, String> {
        let (width, chunk) = (self.spec.action_width, self.spec.chunk_size);
        if !self.spec.continues_chunks {
            return Err("this policy cannot continue a started chunk (ignore the field with --map FIELD=-)".to_owned());
        }
        let values = match field {
            Field::Numbers(numbers) => numbers.clone(),
            Field::Array(array) if array.shape.len() > 1 && array.shape.last() != Some(&width) => {
                return Err(format!(
                    "the started actions have shape {:?}, but an action has {width} values",
                    array.shape
                ));
            }
            Field::Array(array) => few(array)?,
            _ => return Err("the started actions must be numbers".to_owned()),
        };
        if !values.len().is_multiple_of(width.max(1)) || values.len() >= width * chunk {
            let count = values.len();
            return Err(format!(
                "the started actions have {count} values, but an action has {width} values and a chunk {chunk} actions"
            ));
        }
        match values.iter().find(|value| !(**value as f32).is_finite()) {
            Some(value) => Err(format!("a started action contains {value}")),
            None => Ok(values.iter().map(|&value| value as f32).collect()),
        }
    }

    /// Says what a field is by its name alone: a camera by the whole of its name or of that in the policy's data, or by a last part that
    /// no other camera has.
    fn usual(&self, path: &str) -> Option<Part> {
        // `instructions/0` is the first of a list of one.
        let name = short(path.strip_suffix("/0").unwrap_or(path));
        let cameras = &self.spec.cameras;
        let whole = self.spec.camera_named(path);
        let mut alike = (0..cameras.len()).filter(|&number| short(&cameras[number]) == name);
        let named = whole.or_else(|| alike.next().filter(|_| alike.next().is_none()));
        match named {
            Some(number) => Some(Part::Camera(number)),
            None if name == "state" || path == self.spec.data.state => Some(Part::State),
            None if PROMPTS.contains(&name) => Some(Part::Prompt),
            None if name == BEGUN => Some(Part::Begun),
            None => None,
        }
    }

    fn state(&self, mut parts: Vec<(Option<usize>, Vec<f32>)>) -> Result<Vec<f32>, String> {
        parts.sort_by_key(|(rule, _)| *rule);
        if parts.len() > 1 && parts.iter().any(|(rule, _)| rule.is_none()) {
            return Err("the state has several fields: give each a rule (--map FIELD=state), in their order".to_owned());
        }
        let state: Vec<f32> = parts.into_iter().flat_map(|(_, values)| values).collect();
        match (state.len(), self.spec.state_width) {
            (found, wanted) if found == wanted => Ok(state),
            (found, 0) => Err(format!(
                "the state has {found} values, but the policy reads no state (ignore it with --map FIELD=-)"
            )),
            (found, wanted) => Err(format!("the state has {found} values, but the policy reads {wanted}")),
        }
    }
}

/// Returns the last part of a name: `top` of `observation.images.top` and of `images/top`.
fn short(name: &str) -> &str {
    name.rsplit(['/', '.']).next().unwrap_or(name)
}

/// Returns the values of an array that has few.
fn few(array: &Array<'_>) -> Result<Vec<f64>, String> {
    match array.shape.iter().product::<usize>() {
        count if count > MAX_NUMBERS => Err(format!("array has {count} values, more than {MAX_NUMBERS}")),
        _ => array.numbers(),
    }
}

fn numbers(field: &Field<'_>) -> Result<Vec<f32>, String> {
    let numbers = match field {
        Field::Numbers(numbers) => numbers.clone(),
        // [1, width] is a batch of one.
        Field::Array(array) if array.shape.iter().filter(|&&size| size != 1).count() <= 1 => few(array)?,
        Field::Array(array) => return Err(format!("the state must be a vector, found shape {:?}", array.shape)),
        _ => return Err("the state must be numbers".to_owned()),
    };
    match numbers.iter().find(|number| !(**number as f32).is_finite()) {
        Some(number) => Err(format!("the state contains {number}")),
        None => Ok(numbers.iter().map(|&number| number as f32).collect()),
    }
}
