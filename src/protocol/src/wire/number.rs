//! JSON numbers that peers write where an integer is meant. JSON has one kind of number (RFC 8259 section 6), and many
//! languages write a fraction or an exponent without need: `1700000300.5`, `100.0`, `1.7e9`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A JSON number, rounded down. A text is none. Exact where the number has at most 15 digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Whole(i128);

impl Whole {
    /// Reads a value; `None` unless it is a number.
    pub fn of(value: &serde_json::Value) -> Option<Whole> {
        Whole::deserialize(value).ok()
    }

    /// Returns the integer, which can lie far beyond 64 bits.
    pub fn get(self) -> i128 {
        self.0
    }

    /// Returns the integer within the bounds of 64 bits; negative ones are 0.
    pub fn to_u64(self) -> u64 {
        self.0.clamp(0, i128::from(u64::MAX)) as u64
    }

    /// As [`Whole::to_u64`], within 32 bits.
    pub fn to_u32(self) -> u32 {
        self.0.clamp(0, i128::from(u32::MAX)) as u32
    }
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Whole, E> {
                Ok(Whole(value.into()))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Whole, E> {
                Ok(Whole(value.into()))
            }

            // The conversion ends at the bounds of 128 bits.
            fn visit_f64<E: Error>(self, value: f64) -> Result<Whole, E> {
                Ok(Whole(value.floor() as i128))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Option<i128> {
        serde_json::from_str(text).ok().map(Whole::get)
    }

    #[test]
    fn any_number_is_rounded_down_and_nothing_else_is_one() {
        for (text, whole) in [
            ("0", 0),
            ("-0.0", 0),
            ("1795843000.5", 1_795_843_000),
            ("100.0", 100),
            ("1.5e3", 1_500),
            ("-1", -1),
            ("-0.1", -1),
            ("18446744073709551615", u64::MAX.into()),
        ] {
            assert_eq!(read(text), Some(whole), "{text}");
        }
        for text in ["\"1\"", "null", "true", "[1]", "{}", "NaN", "Infinity", "1e999", "01", "+1", ".5", ""] {
            assert_eq!(read(text), None, "{text}");
        }
        let far = |text| serde_json::from_str::<Whole>(text).unwrap();
        assert_eq!((far("1e300").to_u64(), far("1e300").to_u32()), (u64::MAX, u32::MAX));
        assert_eq!((far("-1e300").to_u64(), far("-5").to_u32()), (0, 0));
    }

    proptest! {
        #[test]
        fn integers_come_back(value: i64, float in -1e12..1e12f64) {
            prop_assert_eq!(read(&value.to_string()), Some(value.into()));
            prop_assert_eq!(read(&format!("{float:?}")), Some(float.floor() as i128));
        }
    }
}
