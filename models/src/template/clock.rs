//! The clock a template may ask for with `strftime_now`. It is a value: passed in, frozen for a conversation,
//! and never read here, so that the same conversation always renders the same prefix.
//! Directives as in Python's `datetime.strftime` on Linux with the C locale.

use std::fmt::Write;

/// A moment in local time, frozen for one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrozenClock {
    year: i32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
    /// Name and offset in seconds; Python's naive `now()` has neither and prints nothing for `%Z` and `%z`.
    zone: Option<(String, i32)>,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A civil date, most significant part first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    pub year: i32,
    pub month: u32,
    pub day: u32,
}

/// A time of day, most significant part first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
}

/// Midnight of 1 January 1970: for trial renders, where no one reads the date.
impl Default for FrozenClock {
    fn default() -> Self {
        FrozenClock {
            year: 1970,
            month: 1,
            day: 1,
            hour: 0,
            minute: 0,
            second: 0,
            zone: None,
        }
    }
}

impl FrozenClock {
    /// `None` when a part is out of its range.
    pub fn new(date: Date, time: Time) -> Option<Self> {
        let Date { year, month, day } = date;
        let Time {
            hour,
            minute,
            second,
        } = time;
        let valid = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        valid.then_some(FrozenClock {
            year,
            month,
            day,
            hour,
            minute,
            second,
            zone: None,
        })
    }

    /// The same moment with the zone that `%Z` and `%z` print.
    pub fn in_zone(mut self, name: &str, offset_seconds: i32) -> Self {
        self.zone = Some((name.to_owned(), offset_seconds));
        self
    }

    /// Formats as Python's `strftime` does. An unknown directive stays as it is written.
    pub fn format(&self, format: &str) -> String {
        let mut out = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let (pad, directive) = match rest.next() {
                Some('-') => (false, rest.next()),
                other => (true, other),
            };
            match directive {
                Some(directive) => self.directive(directive, pad, &mut out),
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(&self, directive: char, pad: bool, out: &mut String) {
        let hour12 = if self.hour.is_multiple_of(12) {
            12
        } else {
            self.hour % 12
        };
        let number = |out: &mut String, value: u32, width: usize| {
            let _ = if pad {
                write!(out, "{value:0width$}")
            } else {
                write!(out, "{value}")
            };
        };
        let month = MONTHS[self.month as usize - 1];
        let weekday = self.weekday();
        match directive {
            'Y' => out.push_str(&self.year.to_string()),
            'C' => number(out, self.year as u32 / 100, 2),
            'y' => number(out, self.year as u32 % 100, 2),
            'm' => number(out, self.month, 2),
            'd' => number(out, self.day, 2),
            'e' => out.push_str(&if pad {
                format!("{:2}", self.day)
            } else {
                self.day.to_string()
            }),
            'H' => number(out, self.hour, 2),
            'I' => number(out, hour12, 2),
            'k' => out.push_str(&format!("{:2}", self.hour)),
            'l' => out.push_str(&format!("{hour12:2}")),
            'M' => number(out, self.minute, 2),
            'S' => number(out, self.second, 2),
            'f' => out.push_str("000000"),
            'j' => number(out, self.day_of_year(), 3),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            'A' => out.push_str(DAYS[weekday as usize]),
            'a' => out.push_str(&DAYS[weekday as usize][..3]),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'w' => out.push_str(&weekday.to_string()),
            'u' => out.push_str(&(if weekday == 0 { 7 } else { weekday }).to_string()),
            'U' => number(out, (self.day_of_year() + 6 - weekday) / 7, 2),
            'W' => number(out, (self.day_of_year() + 6 - (weekday + 6) % 7) / 7, 2),
            'G' => out.push_str(&self.iso_week().0.to_string()),
            'V' => number(out, self.iso_week().1, 2),
            's' => out.push_str(&self.unix_seconds().to_string()),
            'D' | 'x' => out.push_str(&self.format("%m/%d/%y")),
            'F' => out.push_str(&self.format("%Y-%m-%d")),
            'T' | 'X' => out.push_str(&self.format("%H:%M:%S")),
            'R' => out.push_str(&self.format("%H:%M")),
            'r' => out.push_str(&self.format("%I:%M:%S %p")),
            'c' => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
            'Z' => out.push_str(self.zone.as_ref().map_or("", |zone| &zone.0)),
            'z' => {
                if let Some((_, offset)) = self.zone {
                    let sign = if offset < 0 { '-' } else { '+' };
                    let minutes = offset.unsigned_abs() / 60;
                    let _ = write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60);
                }
            }
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => {
                out.push('%');
                if !pad {
                    out.push('-');
                }
                out.push(other);
            }
        }
    }

    /// Days since 1 January of the year 1 (proleptic Gregorian).
    fn day_number(&self) -> i64 {
        let before = i64::from(self.year) - 1;
        before * 365 + before / 4 - before / 100 + before / 400 + i64::from(self.day_of_year()) - 1
    }

    /// 0 is Sunday.
    fn weekday(&self) -> u32 {
        ((self.day_number() + 1) % 7) as u32
    }

    fn day_of_year(&self) -> u32 {
        (1..self.month)
            .map(|month| days_in(self.year, month))
            .sum::<u32>()
            + self.day
    }

    fn iso_week(&self) -> (i32, u32) {
        let monday_based = (self.weekday() + 6) % 7;
        let week = (self.day_of_year() as i32 - monday_based as i32 + 9) / 7;
        if week < 1 {
            (self.year - 1, weeks_in(self.year - 1))
        } else if week as u32 > weeks_in(self.year) {
            (self.year + 1, 1)
        } else {
            (self.year, week as u32)
        }
    }

    fn unix_seconds(&self) -> i64 {
        let days_to_1970 = 719_162;
        let of_day =
            i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second);
        (self.day_number() - days_to_1970) * 86_400 + of_day
            - i64::from(self.zone.as_ref().map_or(0, |zone| zone.1))
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i32, month: u32) -> u32 {
    match month {
        2 => 28 + u32::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A year has 53 ISO weeks when 1 January is a Thursday, or a Wednesday of a leap year.
fn weeks_in(year: i32) -> u32 {
    let first = FrozenClock {
        year,
        month: 1,
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
        zone: None,
    }
    .weekday();
    52 + u32::from(first == 4 || (first == 3 && is_leap(year)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(year: i32, month: u32, day: u32) -> FrozenClock {
        FrozenClock::new(
            Date { year, month, day },
            Time {
                hour: 15,
                minute: 9,
                second: 26,
            },
        )
        .expect("a valid moment")
    }

    /// The right column is what CPython 3.11 prints for the same moment.
    #[test]
    fn formats_as_python_does() {
        let pi_day = clock(2026, 3, 14);
        for (format, expected) in [
            ("%Y-%m-%d %H:%M:%S", "2026-03-14 15:09:26"),
            ("%d %b %Y", "14 Mar 2026"),
            ("%A, %B %-d", "Saturday, March 14"),
            ("%a %e %I%p %j %y %u %w", "Sat 14 03PM 073 26 6 6"),
            ("%U %W %G-W%V", "10 10 2026-W11"),
            (
                "%c | %x | %X",
                "Sat Mar 14 15:09:26 2026 | 03/14/26 | 15:09:26",
            ),
            ("100%% %Z%z|", "100% |"),
        ] {
            assert_eq!(pi_day.format(format), expected, "{format}");
        }
    }

    #[test]
    fn the_edges_of_the_year_are_right() {
        assert_eq!(clock(2021, 1, 3).format("%G-W%V %a"), "2020-W53 Sun");
        assert_eq!(clock(2024, 12, 30).format("%G-W%V %j"), "2025-W01 365");
        assert_eq!(clock(2024, 2, 29).format("%j %A"), "060 Thursday");
        assert_eq!(clock(1970, 1, 1).format("%s"), "54566");
        assert_eq!(
            clock(2026, 3, 14).in_zone("CET", 3600).format("%Z %z"),
            "CET +0100"
        );
    }

    #[test]
    fn a_moment_that_does_not_exist_is_refused() {
        let noon = Time {
            hour: 12,
            minute: 0,
            second: 0,
        };
        assert!(
            FrozenClock::new(
                Date {
                    year: 2023,
                    month: 2,
                    day: 29
                },
                noon
            )
            .is_none()
        );
        assert!(
            FrozenClock::new(
                Date {
                    year: 2023,
                    month: 13,
                    day: 1
                },
                noon
            )
            .is_none()
        );
        assert!(
            FrozenClock::new(
                Date {
                    year: 2023,
                    month: 1,
                    day: 1
                },
                Time { hour: 24, ..noon }
            )
            .is_none()
        );
    }
}
