//! Quantiles of the beta distribution.

/// Returns the `u` quantile of Beta(alpha, beta), for u in (0, 1): where the regularized incomplete beta function is `u`. Exact where one
/// of the two is 1, else by bisection, to the last bits of a double.
pub(super) fn quantile(alpha: f64, beta: f64, u: f64) -> f64 {
    if beta == 1.0 {
        return u.powf(1.0 / alpha);
    }
    if alpha == 1.0 {
        return 1.0 - (1.0 - u).powf(1.0 / beta);
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if cumulative(alpha, beta, middle) < u { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Returns the regularized incomplete beta function I_x(a, b), by its continued fraction (Press et al., Numerical Recipes, 6.4).
pub(super) fn cumulative(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    match x < (a + 1.0) / (a + b + 2.0) {
        true => front * fraction(a, b, x) / a,
        false => 1.0 - front * fraction(b, a, 1.0 - x) / b,
    }
}

/// Returns the continued fraction, by Lentz's method.
fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let not_zero = |x: f64| if x.abs() < 1e-300 { 1e-300 } else { x };
    let (mut c, mut d) = (1.0, 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0)));
    let mut found = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / not_zero(1.0 + term * d);
            c = not_zero(1.0 + term / c);
            change = c * d;
            found *= change;
        }
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    found
}

/// Returns the logarithm of the gamma function of a number above 0 (Lanczos 1964, g = 7).
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let series = (1..).zip(TERMS).fold(0.999_999_999_999_809_9, |sum, (at, term)| sum + term / (x + f64::from(at)));
    let t = x + 7.5;
    0.5 * std::f64::consts::TAU.ln() + (x + 0.5) * t.ln() - t + series.ln()
}
