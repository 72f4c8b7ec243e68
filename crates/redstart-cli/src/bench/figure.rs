//! Figures as people read them.

pub(super) fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1e3),
        us if us >= 1000.0 => format!("{:.2} ms", us / 1e3),
        us if us >= 100.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    }
}

pub(super) fn per_second(rate: f64) -> String {
    format!("{} op/s", thousands(rate))
}

pub(super) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
