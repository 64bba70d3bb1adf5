//! Kubernetes quantities (`10Gi`, `1500M`, `2e9`) as whole numbers, rounded up and capped as the API server does.

const MOST: i128 = i64::MAX as i128;
/// Digits that Kubernetes keeps as they are.
const MOST_DIGITS: usize = 18;
/// Kubernetes knows nothing finer.
const NANO: i128 = 1_000_000_000;

/// The value of a quantity, rounded up. None when the text is no quantity.
///
/// The grammar is Kubernetes' own: an optional sign, digits with at most one dot, then a binary suffix (Ki to Ei), a
/// decimal one (n, u, m, k, M to E) or a decimal exponent.
pub fn parse(text: &str) -> Option<i128> {
    Some(scaled(text, 0)?.clamp(-MOST, MOST))
}

/// The value in billionths, for comparing without rounding. Kubernetes caps it only where it does not keep it as digits and
/// a decimal exponent: `1e30` is more than `16Ei`.
pub fn nanos(text: &str) -> Option<i128> {
    let value = scaled(text, 9)?;
    let digits = text.bytes().take_while(|b| !b.is_ascii_alphabetic()).filter(u8::is_ascii_digit).count();
    let kept = digits <= MOST_DIGITS && !text.ends_with('i');
    Some(if kept { value } else { value.clamp(-MOST * NANO, MOST * NANO) })
}

/// The whole of `whole` units, in nanos.
pub const fn in_nanos(whole: i128) -> i128 {
    whole.saturating_mul(NANO)
}

/// The value times a power of ten, rounded up.
fn scaled(text: &str, shift: i32) -> Option<i128> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > 36 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, exponent) = scale(suffix)?;
    let exponent = exponent.checked_add(shift)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.saturating_mul(multiplier);
    let power = 10_i128.saturating_pow(exponent.unsigned_abs());
    let value = if exponent >= 0 {
        scaled.saturating_mul(power)
    } else {
        scaled / power + i128::from(scaled % power != 0 && !negative)
    };
    Some(if negative { -value } else { value })
}

/// (multiplier, power of ten) of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            (1, exponent.parse().ok().filter(|e: &i32| e.abs() <= 36)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_as_kubernetes_reads_them() {
        for (text, value) in [
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("10M", 10_000_000),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("100m", 1),
            ("1500m", 2),
            ("0", 0),
            ("-1Ki", -1024),
            ("+5k", 5000),
            (".5k", 500),
            ("5.", 5),
            ("12e-1", 2),
            ("16Ei", MOST),
            ("1e36", MOST),
            ("-1e30", -MOST),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn a_comparison_does_not_round() {
        assert!(nanos("33554431.5") < nanos("32Mi"));
        assert!(nanos("5.2") < nanos("5.5"));
        assert_eq!(nanos("1Gi"), Some(in_nanos(1 << 30)));
        assert!(nanos("16Ei") < nanos("1e30"), "as the API server has it");
        assert_eq!(nanos("16Ei"), nanos("32Ei"));
    }

    #[test]
    fn what_is_no_quantity_is_none() {
        for text in ["", "Gi", "1 Gi", "1GiB", "1.2.3", "x", "-", "1e", "1ki", "0x10", "1K"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
