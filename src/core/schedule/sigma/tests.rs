use super::*;
use crate::config::Density;
use crate::message::{Grid, SampleId, Target};

/// Returns the distribution function of the normal distribution, by Simpson's rule.
fn phi(x: f64) -> f64 {
    let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
    let (from, steps) = (-8.0f64, 120);
    let h = (x.max(from) - from) / f64::from(steps);
    let weight = |i| [2.0, 4.0][i as usize % 2];
    let inner: f64 = (1..steps).map(|i| weight(i) * density(from + f64::from(i) * h)).sum();
    h / 3.0 * (density(from) + density(x) + inner)
}

fn logit(x: f64) -> f64 {
    (x / (1.0 - x)).ln()
}

/// Returns P(f ≤ x) for the falling function `f` of an even number.
fn falling(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        if f(middle) > x { low = middle } else { high = middle }
    }
    1.0 - low
}

/// Returns a sample of `num_tokens` tokens, a row of one frame.
fn sample(id: u64, num_tokens: u32) -> SampleMeta {
    let target = Target { grid: Grid { t: 1, h: 1, w: num_tokens }, sigma: Sigma::default() };
    SampleMeta { target: Some(target), ..SampleMeta::of_tokens(SampleId(id), num_tokens, 1) }
}

fn spec(levels: NoiseLevels) -> SigmaSpec {
    let shape = FlowShape { boundary: None, auto_shift: AutoShift::QWEN };
    SigmaSpec { seed: 5, levels, shape, experts: Experts::Both }
}

/// Plans so many steps of so many samples of 256 tokens.
fn planned(spec: &SigmaSpec, steps: u64, batch: u64) -> Vec<Vec<SampleMeta>> {
    let step = |step| {
        let mut samples: Vec<SampleMeta> = (0..batch).map(|at| sample(step * batch + at, 256)).collect();
        spec.plan(StepId(step), samples.iter_mut());
        samples
    };
    (0..steps).map(step).collect()
}

fn sigmas(samples: &[SampleMeta]) -> Vec<f64> {
    samples.iter().map(|sample| sample.target.unwrap().sigma.get()).collect()
}

/// Returns the largest distance of the levels' distribution from `F`.
fn distance(mut levels: Vec<f64>, f: impl Fn(f64) -> f64) -> f64 {
    levels.sort_unstable_by(f64::total_cmp);
    let count = levels.len() as f64;
    let gap = |(at, x): (usize, &f64)| {
        let expected = f(*x);
        (expected - at as f64 / count).abs().max((expected - (at + 1) as f64 / count).abs())
    };
    levels.iter().enumerate().map(gap).fold(0.0, f64::max)
}

#[test]
fn levels_have_their_density() {
    let of = |density| NoiseLevels { density, ..NoiseLevels::default() };
    let unshift = |s: f64, x: f64| x / (s - (s - 1.0) * x);
    let binomial = |x: f64| 1.0 - (1.0 - x).powi(6) - 6.0 * x * (1.0 - x).powi(5);
    let mode = |u: f64| 1.0 - u - 1.29 * ((std::f64::consts::FRAC_PI_2 * u).cos().powi(2) - 1.0 + u);
    type Distribution<'a> = Box<dyn Fn(f64) -> f64 + 'a>;
    let cases: [(NoiseLevels, Distribution<'_>); 10] = [
        (of(Density::Uniform), Box::new(|x| x)),
        (NoiseLevels { shift: Shift::By(5.0), ..of(Density::Uniform) }, Box::new(|x| unshift(5.0, x))),
        (of(Density::LogitNormal), Box::new(|x| phi(logit(x)))),
        (
            NoiseLevels { mean: Some(0.5), std: Some(1.5), shift: Shift::Auto, ..of(Density::LogitNormal) },
            // Pictures of 256 tokens.
            Box::new(|x| phi((logit(unshift(0.5f64.exp(), x)) - 0.5) / 1.5)),
        ),
        (of(Density::Mode), Box::new(|x| falling(mode, x))),
        (NoiseLevels { alpha: Some(2.0), beta: Some(5.0), ..of(Density::Beta) }, Box::new(binomial)),
        (
            NoiseLevels { mean: Some(1.0), std: Some(2.0), ..of(Density::Logsnr) },
            Box::new(|x| 1.0 - phi((-2.0 * logit(x) - 1.0) / 2.0)),
        ),
        (
            NoiseLevels { min: 0.2, max: 0.7, ..of(Density::LogitNormal) },
            Box::new(|x| (phi(logit(x)) - phi(logit(0.2))) / (phi(logit(0.7)) - phi(logit(0.2)))),
        ),
        (
            NoiseLevels { min: 0.2, max: 0.7, squeeze: true, ..of(Density::LogitNormal) },
            Box::new(|x| phi(logit((x - 0.2) / 0.5))),
        ),
        // Below a level of the grid lie those before it: half a level is the step's own height.
        (of(Density::Discrete), Box::new(|x| x - 0.0005)),
    ];
    for (levels, distribution) in cases {
        let alone = NoiseLevels { stratify: false, ..levels };
        let all = |levels| planned(&spec(levels), 50, 40).iter().flat_map(|step| sigmas(step)).collect::<Vec<_>>();
        let found = all(alone);
        assert!(found.iter().all(|sigma| *sigma >= levels.min && *sigma <= levels.max), "{levels:?}");
        // One in a hundred seeds is farther away (Kolmogorov and Smirnov).
        let far = 1.63 / (found.len() as f64).sqrt();
        let apart = distance(found, &distribution);
        assert!(apart < far, "{levels:?}: {apart} of {far}");
        // Levels that are spread evenly lie much nearer; of the grid, by half a level.
        let apart = distance(all(levels), &distribution);
        assert!(apart < far / 5.0, "{levels:?} stratified: {apart}");
    }
}

#[test]
fn squeezed_levels_are_counted_where_they_are() {
    let levels = NoiseLevels { density: Density::Uniform, min: 0.2, max: 0.6, squeeze: true, ..NoiseLevels::default() };
    for (sigma, above) in [(0.1, 1.0), (0.3, 0.75), (0.4, 0.5), (0.7, 0.0)] {
        let found = spec(levels).mass_above(sigma, 256);
        assert!((found - above).abs() < 1e-6, "{sigma}: {found}");
    }
    // One transformer of two has the whole density between its own ends.
    let shape = FlowShape { boundary: Some(0.9), auto_shift: AutoShift::QWEN };
    let low = SigmaSpec { shape, experts: Experts::Low, ..spec(NoiseLevels { min: 0.0, max: 1.0, ..levels }) };
    assert!((low.mass_above(0.45, 256) - 0.5).abs() < 1e-6);
    assert!(planned(&low, 5, 50).iter().flatten().all(|sample| sample.route == LOW_NOISE));
}

#[test]
fn a_step_has_one_level_in_each_of_its_ranges() {
    let levels = NoiseLevels { density: Density::Uniform, ..NoiseLevels::default() };
    for batch in [1u64, 2, 7, 32, 1000] {
        let steps = planned(&spec(levels), 4, batch);
        for samples in &steps {
            let mut ranges: Vec<u64> = sigmas(samples).iter().map(|sigma| (sigma * batch as f64) as u64).collect();
            ranges.sort_unstable();
            assert_eq!(ranges, (0..batch).collect::<Vec<_>>());
        }
        let [first, second] = [0, 1].map(|at| sigmas(&steps[at]));
        assert_ne!(first, second);
        assert_eq!(planned(&spec(levels), 2, batch)[1], steps[1], "the same when it is planned again");
    }
    let other = SigmaSpec { seed: 6, ..spec(levels) };
    assert_ne!(planned(&other, 1, 32), planned(&spec(levels), 1, 32));
    // Samples of tokens have no level.
    let mut tokens = [SampleMeta::of_tokens(SampleId(0), 5, 1)];
    spec(levels).plan(StepId(0), tokens.iter_mut());
    assert_eq!(tokens[0], SampleMeta::of_tokens(SampleId(0), 5, 1));
}

#[test]
fn levels_are_routed_exactly_at_the_boundary() {
    let shape = FlowShape { boundary: Some(0.9), auto_shift: AutoShift::QWEN };
    let levels = NoiseLevels { density: Density::Uniform, shift: Shift::By(5.0), ..NoiseLevels::default() };
    let both = SigmaSpec { shape, ..spec(levels) };
    assert_eq!(both.route(Sigma::new(0.9)), HIGH_NOISE);
    assert_eq!(both.route(Sigma::new(0.9f32.next_down())), LOW_NOISE);
    let steps = planned(&both, 20, 100);
    let routes = steps.iter().flatten().map(|sample| (sample.target.unwrap().sigma, sample.route));
    assert!(routes.clone().all(|(sigma, route)| (route == HIGH_NOISE) == (sigma.get() >= f64::from(0.9f32))));
    let share = routes.filter(|(_, route)| *route == HIGH_NOISE).count() as f64 / 2000.0;
    // 36 % of a uniform density with shift 5 is above 0.9; spread evenly, every step has that share.
    let mass = 1.0 - 0.9 / (5.0 - 4.0 * 0.9);
    assert!((share - mass).abs() < 0.01 && (both.mass_above(0.9, 256) - mass).abs() < 1e-6, "{share} of {mass}");
    for (experts, discrete) in
        [(Experts::High, false), (Experts::Low, false), (Experts::High, true), (Experts::Low, true)]
    {
        let density = if discrete { Density::Discrete } else { Density::Uniform };
        let one = SigmaSpec { experts, ..SigmaSpec { shape, ..spec(NoiseLevels { density, ..levels }) } };
        let wanted = if experts == Experts::High { HIGH_NOISE } else { LOW_NOISE };
        assert!(planned(&one, 5, 50).iter().flatten().all(|sample| sample.route == wanted), "{experts:?}");
    }
    let histogram = both.histogram(10, 256);
    assert!((histogram.iter().sum::<f64>() - 1.0).abs() < 1e-12 && (histogram[9] - mass).abs() < 1e-6);
}

#[test]
fn a_transformer_that_is_trained_alone_has_levels() {
    let shape = FlowShape { boundary: Some(0.875), auto_shift: AutoShift::QWEN };
    let of = |experts, min, max| {
        let levels = NoiseLevels { min, max, ..NoiseLevels::default() };
        SigmaSpec { shape, experts, ..spec(levels) }
    };
    let high = of(Experts::High, 0.0, 0.5).expect_levels().unwrap_err();
    assert!(high.contains("from 0.875 on") && high.contains("`train.sigma.max` is 0.5"), "{high}");
    let low = of(Experts::Low, 0.875, 1.0).expect_levels().unwrap_err();
    assert!(low.contains("below 0.875") && low.contains("`train.sigma.min` is 0.875"), "{low}");
    for (experts, min, max) in [(Experts::High, 0.5, 0.9), (Experts::Low, 0.5, 0.9), (Experts::Both, 0.0, 0.5)] {
        let spec = of(experts, min, max);
        assert_eq!(spec.expect_levels(), Ok(()));
        assert!((spec.histogram(10, 256).iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
}

/// Quantiles go back through the distribution function, which for whole parameters is a sum of binomial terms.
#[test]
fn quantiles_are_those_of_the_distribution() {
    for (p, x) in
        [(0.5, 0.0), (0.975, 1.959_963_984_540_054), (1e-10, -6.361_340_902_404_056), (0.9, 1.281_551_565_544_6)]
    {
        assert!((normal::quantile(p) - x).abs() < 1e-12, "{p}: {}", normal::quantile(p));
    }
    let binomial = |x: f64| 1.0 - (1.0 - x).powi(6) - 6.0 * x * (1.0 - x).powi(5);
    for at in 1..40 {
        let x = f64::from(at) / 40.0;
        assert!((beta::cumulative(2.0, 5.0, x) - binomial(x)).abs() < 1e-12);
        for (a, b) in [(2.0, 5.0), (0.5, 0.5), (30.0, 4.0), (1.5, 1.0), (1.0, 3.0)] {
            let found = beta::cumulative(a, b, beta::quantile(a, b, x));
            assert!((found - x).abs() < 1e-9, "{a} {b}: {found} of {x}");
        }
    }
    // Qwen-Image at 1024² and 1328².
    assert!((AutoShift::QWEN.at(4096) - 2.00).abs() < 0.005 && (AutoShift::QWEN.at(6889) - 2.30).abs() < 0.005);
}
