//! A control: how many questions are answered correctly by a linear classifier that knows the question and, of media, the mean and
//! the deviation of each channel. A model that does no better has looked at nothing else, such as an order in time.

use anyhow::{Result, ensure};
use loongforge_core::data::tools::{default_jobs, for_each_ordered};
use loongforge_core::data::{BadSample, Dataset, Sample};
use loongforge_core::message::Tower;
use loongforge_core::observe::ScoredAnswer;
use std::collections::BTreeMap;
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// A classifier has one weight matrix for each question: so many may differ.
const MAX_QUESTIONS: usize = 64;
const MAX_ANSWERS: usize = 1000;
const NUM_STEPS: usize = 300;
const LEARNING_RATE: f64 = 0.02;
/// Penalty of weights, against fitting the training samples alone.
const WEIGHT_DECAY: f64 = 1e-3;

/// Statistics of samples, beside their questions and answers.
#[derive(Default)]
struct Table {
    questions: Vec<String>,
    answers: Vec<String>,
    /// Positions of features, by sample and tower.
    statistics: Vec<BTreeMap<Tower, Vec<f32>>>,
}

/// Fits the classifier to the first `num_train` samples of `train` and answers the questions of `held_out`.
///
/// # Errors
/// There are too many different questions or answers. No sample can be used.
pub fn pooled_answers(train: &Dataset, num_train: u64, held_out: &Dataset) -> Result<Vec<ScoredAnswer>> {
    let train = Table::read(train, num_train.min(train.len() as u64))?;
    let held_out = Table::read(held_out, held_out.len() as u64)?;
    let (questions, answers) = (distinct(&train.questions), distinct(&train.answers));
    ensure!(questions.len() <= MAX_QUESTIONS, "more than {MAX_QUESTIONS} different questions");
    ensure!(answers.len() <= MAX_ANSWERS, "more than {MAX_ANSWERS} different answers");
    let widths = train.widths();
    let (rows, asked) = (train.rows(&widths), &held_out.rows(&widths));
    let (mean, deviation) = (rows.mean_dim(0, true, None), rows.std_dim(0, true, true) + 1e-6);
    let (rows, asked) = ((rows - &mean) / &deviation, (asked - &mean) / &deviation);
    let mut given = vec![String::new(); held_out.questions.len()];
    for question in &questions {
        let of = |table: &Table| -> Vec<i64> {
            (0..).zip(&table.questions).filter(|(_, own)| *own == question).map(|(at, _)| at).collect()
        };
        let (known, wanted) = (of(&train), of(&held_out));
        let place = |&at: &i64| answers.binary_search(&train.answers[at as usize]).expect("an answer of theirs") as i64;
        let labels = Tensor::from_slice(&known.iter().map(place).collect::<Vec<_>>());
        let scores = fit(&rows.index_select(0, &Tensor::from_slice(&known)), &labels, answers.len() as i64)
            .forward(&asked.index_select(0, &Tensor::from_slice(&wanted)));
        let best = Vec::<i64>::try_from(scores.argmax(1, false)).expect("numbers of classes");
        wanted.iter().zip(best).for_each(|(&at, best)| given[at as usize] = answers[best as usize].clone());
    }
    let asked = held_out.questions.into_iter().zip(held_out.answers).zip(given);
    let answer = |((prompt, expected), answer): ((String, String), String)| ScoredAnswer {
        correct: answer == expected,
        prompt,
        answer,
        expected,
    };
    Ok(asked.map(answer).collect())
}

/// Returns the softmax regression of `labels` `[n]` on `rows` `[n, width]`.
fn fit(rows: &Tensor, labels: &Tensor, num_classes: i64) -> Linear {
    let store = nn::VarStore::new(Device::Cpu);
    let root = store.root();
    let linear = Linear {
        weight: root.zeros("weight", &[rows.size()[1], num_classes]),
        bias: root.zeros("bias", &[num_classes]),
    };
    let mut adam = nn::Adam::default().build(&store, LEARNING_RATE).expect("an optimizer of parameters that are there");
    for _ in 0..NUM_STEPS {
        let penalty = linear.weight.square().sum(Kind::Float) * WEIGHT_DECAY;
        adam.backward_step(&(linear.forward(rows).cross_entropy_for_logits(labels) + penalty));
    }
    linear
}

struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    /// Scores `[n, classes]` of `rows` `[n, width]`.
    fn forward(&self, rows: &Tensor) -> Tensor {
        rows.matmul(&self.weight) + &self.bias
    }
}

impl Table {
    /// Reads the first samples; those that cannot be used are left out, as the run says of them elsewhere.
    fn read(dataset: &Dataset, num_samples: u64) -> Result<Self> {
        let mut table = Self::default();
        let read = |index| -> Result<_, BadSample> { Ok((dataset.sample(index)?, dataset.exchange(index)?)) };
        for_each_ordered(default_jobs(), 0..num_samples, read, |_, found| {
            if let Ok((sample, exchange)) = found {
                table.statistics.push(statistics(&sample));
                table.questions.push(exchange.question);
                table.answers.push(exchange.answer);
            }
            Ok::<(), anyhow::Error>(())
        })?;
        ensure!(!table.questions.is_empty(), "no sample can be used");
        Ok(table)
    }

    /// Returns numbers that samples have for each tower.
    fn widths(&self) -> BTreeMap<Tower, usize> {
        self.statistics.iter().flatten().map(|(tower, values)| (*tower, values.len())).collect()
    }

    /// Returns `[samples, width]`: the towers' statistics in a row, zeros where a sample has nothing for a tower.
    fn rows(&self, widths: &BTreeMap<Tower, usize>) -> Tensor {
        let width: usize = widths.values().sum();
        let mut rows = Vec::with_capacity(self.statistics.len() * width);
        for own in &self.statistics {
            for (tower, &width) in widths {
                let values = own.get(tower).map_or(&[][..], Vec::as_slice);
                rows.extend((0..width).map(|at| values.get(at).copied().unwrap_or(0.0)));
            }
        }
        Tensor::from_slice(&rows).view([self.statistics.len() as i64, width as i64])
    }
}

fn distinct(texts: &[String]) -> Vec<String> {
    let mut texts = texts.to_vec();
    texts.sort();
    texts.dedup();
    texts
}

/// Returns for each tower the mean of each channel over all items of a sample, then each deviation.
fn statistics(sample: &Sample) -> BTreeMap<Tower, Vec<f32>> {
    let mut sums: BTreeMap<Tower, (f64, Vec<[f64; 2]>)> = BTreeMap::new();
    for item in &sample.media {
        let width = item.pixels.len() / item.grid.num_cells().max(1);
        let (count, sums) = sums.entry(item.tower).or_default();
        sums.resize(width, [0.0; 2]);
        for row in item.pixels.chunks_exact(width.max(1)) {
            *count += 1.0;
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum = [sum[0] + f64::from(*value), sum[1] + f64::from(*value).powi(2)];
            }
        }
    }
    let pool = |(tower, (count, sums)): (Tower, (f64, Vec<[f64; 2]>))| {
        let means = sums.iter().map(|[sum, _]| (sum / count) as f32);
        let deviations =
            sums.iter().map(|[sum, square]| (square / count - (sum / count).powi(2)).max(0.0).sqrt() as f32);
        (tower, means.chain(deviations).collect())
    };
    sums.into_iter().map(pool).collect()
}
