//! The time, read here and passed on as a value.

use models::template::{Date, FrozenClock, Time};

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    now_ms() / 1_000
}

/// The local time now, for one conversation: a clock that moves would change its prefix.
pub fn freeze() -> FrozenClock {
    freeze_at(now_ms())
}

/// The local time at `ms` since 1970: a conversation that is resumed keeps the clock it began with.
pub fn freeze_at(ms: u64) -> FrozenClock {
    let now = zoned(ms);
    let part = |n: i8| u32::from(n.unsigned_abs());
    let date = Date {
        year: i32::from(now.year()),
        month: part(now.month()),
        day: part(now.day()),
    };
    let time = Time {
        hour: part(now.hour()),
        minute: part(now.minute()),
        second: part(now.second()),
    };
    FrozenClock::new(date, time).unwrap_or_default()
}

/// The local time of day at `ms` since 1970: `14:02:31`.
pub fn time_of_day(ms: u64) -> String {
    zoned(ms).strftime("%H:%M:%S").to_string()
}

fn zoned(ms: u64) -> jiff::Zoned {
    let at = i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.unwrap_or_default()
        .to_zoned(jiff::tz::TimeZone::system())
}

/// A name for something that begins now: `20261130-195501`.
pub fn stamp() -> String {
    jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
}
