//! When something is due: five fields of cron in a time zone.
//!
//! cron is evaluated on the face of a clock that never changes, and each time on that face is then looked up in the zone. So a
//! time that the zone leaves out becomes the first moment after the gap, one that it has twice becomes the first of both, and
//! neither is lost or doubled.

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions, parse_crontab_with};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

/// A schedule that comes true again and again.
#[derive(Debug, Clone)]
pub struct Schedule {
    cron: Crontab,
    zone: TimeZone,
    text: String,
}

/// Why a schedule cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// It is not cron.
    #[error(
        "{text:?} is no schedule: use five fields of cron (minute, hour, day of the month, month, day of the week), such as 0 3 * * *"
    )]
    Cron {
        /// What was written.
        text: String,
    },
    /// There is no such zone.
    #[error("there is no time zone {zone:?}: use a name of the IANA database, such as Europe/Zurich or UTC")]
    Zone {
        /// What was written.
        zone: String,
    },
    /// No such moment ever comes.
    #[error("the schedule {text:?} names a moment that never comes, such as 30 February: use one that does")]
    Never {
        /// What was written.
        text: String,
    },
}

/// Years that one look of the library goes ahead, and how many looks: 29 February on a Monday comes every 28 years, or 40 where
/// a century has no leap day.
const LOOKS: i16 = 11;
const YEARS_A_LOOK: i16 = 4;

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
    }
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Schedule {
    /// Reads one.
    pub fn parse(text: &str, zone: &str) -> Result<Self, Impossible> {
        let wrong = || Impossible::Cron { text: text.to_owned() };
        // The library takes a zone as a sixth field: it has a field of its own.
        if text.split_whitespace().count() != 5 {
            return Err(wrong());
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let cron = parse_crontab_with(text, options).map_err(|_| wrong())?;
        let found = TimeZoneDatabase::bundled().get(zone);
        let zone = found.map_err(|_| Impossible::Zone { zone: zone.to_owned() })?;
        let schedule = Self { cron, zone, text: text.to_owned() };
        // Any moment will do to look ahead from: what never comes after it never comes.
        schedule
            .face_after(DateTime::constant(2000, 1, 1, 0, 0, 0, 0))
            .ok_or(Impossible::Never { text: text.to_owned() })?;
        Ok(schedule)
    }

    /// The first run after a moment.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut face = self.zone.to_datetime(after);
        loop {
            face = self.face_after(face)?;
            let run = self.moment(face)?;
            // While a clock shows an hour for the second time, all that stands on its face has been.
            if run > after {
                return Some(run);
            }
        }
    }

    /// The newest run that is later than `after` and not later than `until`.
    pub fn newest(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let within = |from: Timestamp| self.next(from).filter(|run| *run <= until);
        // Runs come in order, so halving finds the last moment after which one comes in time.
        let mut newest = within(after)?;
        let mut high = until.as_second();
        loop {
            let low = newest.as_second();
            if high <= low {
                return Some(newest);
            }
            let middle = low + (high - low) / 2;
            match Timestamp::from_second(middle).ok().and_then(within) {
                Some(run) => newest = run,
                None => high = middle,
            }
        }
    }

    /// Whether it runs at this very moment.
    pub fn runs_at(&self, moment: Timestamp) -> bool {
        moment.checked_sub(jiff::SignedDuration::from_secs(1)).ok().and_then(|before| self.next(before)) == Some(moment)
    }

    /// The next time on the face of the clock.
    fn face_after(&self, face: DateTime) -> Option<DateTime> {
        let mut from = Offset::UTC.to_timestamp(face).ok()?;
        for _ in 0..LOOKS {
            if let Ok(found) = self.cron.find_next(from) {
                return Some(found.datetime());
            }
            let later = Offset::UTC.to_datetime(from).checked_add(jiff::Span::new().years(YEARS_A_LOOK)).ok()?;
            from = Offset::UTC.to_timestamp(later).ok()?;
        }
        None
    }

    /// The moment at which a clock of the zone shows a time.
    fn moment(&self, face: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(face);
        match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => ambiguous.earlier().ok(),
            AmbiguousOffset::Gap { .. } => {
                // Behind the gap by as much as it lies in it; the gap's end is the change of clocks before that.
                let behind = ambiguous.later().ok()?.checked_add(jiff::SignedDuration::from_secs(1)).ok()?;
                self.zone.preceding(behind).next().map(|change| change.timestamp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(text: &str, zone: &str) -> Schedule {
        Schedule::parse(text, zone).unwrap()
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn runs(schedule: &Schedule, from: &str, count: usize) -> Vec<String> {
        let mut at = time(from);
        let next = |_| {
            at = schedule.next(at).unwrap();
            at.to_string()
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn a_schedule_follows_the_clock_of_its_zone() {
        let nightly = schedule("0 3 * * *", "Europe/Zurich");
        assert_eq!(runs(&nightly, "2026-11-30T10:00:00Z", 2), ["2026-12-01T02:00:00Z", "2026-12-02T02:00:00Z"]);
        assert_eq!(runs(&nightly, "2026-06-30T10:00:00Z", 1), ["2026-07-01T01:00:00Z"]);
        assert_eq!(runs(&nightly, "2026-12-01T02:00:00Z", 1), ["2026-12-02T02:00:00Z"], "after, not at");
        let weekly = schedule("30 1 * * SUN", "UTC");
        assert_eq!(runs(&weekly, "2026-11-30T00:00:00Z", 1), ["2026-12-06T01:30:00Z"]);
    }

    #[test]
    fn a_time_that_does_not_exist_runs_once_at_the_next_valid_moment() {
        // 29 March 2026: 02:00 becomes 03:00 in Zurich, at 01:00 UTC.
        let inside = schedule("30 2 * * *", "Europe/Zurich");
        assert_eq!(
            runs(&inside, "2026-03-27T12:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        let edge = schedule("0 2 * * *", "Europe/Zurich");
        assert_eq!(runs(&edge, "2026-03-28T12:00:00Z", 1), ["2026-03-29T01:00:00Z"]);
        // All that stand in the gap, and what stands at its end, are one run.
        let often = schedule("*/20 * * * *", "Europe/Zurich");
        assert_eq!(
            runs(&often, "2026-03-29T00:30:00Z", 3),
            ["2026-03-29T00:40:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z"]
        );
        // A change at midnight: Asuncion left out 00:00 to 01:00 on 6 October 2024.
        let midnight = schedule("0 0 * * *", "America/Asuncion");
        assert_eq!(runs(&midnight, "2024-10-05T12:00:00Z", 1), ["2024-10-06T04:00:00Z"]);
        // A whole day: Apia had no 30 December 2011.
        let apia = schedule("0 12 30 12 *", "Pacific/Apia");
        assert_eq!(runs(&apia, "2011-12-01T00:00:00Z", 1), ["2011-12-30T10:00:00Z"]);
    }

    #[test]
    fn a_time_that_happens_twice_runs_once() {
        // 25 October 2026: 03:00 becomes 02:00 in Zurich, at 01:00 UTC.
        let twice = schedule("30 2 * * *", "Europe/Zurich");
        assert_eq!(runs(&twice, "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        assert_eq!(runs(&twice, "2026-10-25T01:10:00Z", 1), ["2026-10-26T01:30:00Z"], "asked within the second hour");
        let often = schedule("*/30 * * * *", "Europe/Zurich");
        assert_eq!(
            runs(&often, "2026-10-25T00:00:00Z", 3),
            ["2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-25T02:30:00Z"]
        );
        // Lord Howe changes by half an hour.
        let island = schedule("45 1 * * *", "Australia/Lord_Howe");
        assert_eq!(runs(&island, "2026-04-04T00:00:00Z", 2), ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]);
    }

    #[test]
    fn what_never_comes_is_told_and_what_comes_seldom_is_found() {
        let refused = |text: &str, zone: &str| Schedule::parse(text, zone).unwrap_err();
        for never in ["0 3 30 2 *", "0 3 31 4,6,9,11 *", "0 0 30,31 FEB *"] {
            assert!(matches!(refused(never, "UTC"), Impossible::Never { .. }), "{never}");
        }
        for wrong in
            ["", "* * * *", "61 * * * *", "0 24 * * *", "0 3 * * * UTC", "@daily", "0 3 * * MOO", "5-1 * * * *"]
        {
            assert!(matches!(refused(wrong, "UTC"), Impossible::Cron { .. }), "{wrong}");
        }
        for zone in ["", "Mars/Olympus", "Europe", "../etc/passwd"] {
            assert!(matches!(refused("0 3 * * *", zone), Impossible::Zone { .. }), "{zone}");
        }
        let leap = schedule("0 3 29 2 *", "UTC");
        assert_eq!(runs(&leap, "2096-03-01T00:00:00Z", 1), ["2104-02-29T03:00:00Z"], "2100 has none");
    }

    #[test]
    fn only_the_newest_missed_run_is_found() {
        let nightly = schedule("0 3 * * *", "UTC");
        let newest = |after: &str, until: &str| nightly.newest(time(after), time(until)).map(|run| run.to_string());
        assert_eq!(newest("2026-11-01T00:00:00Z", "2026-11-30T10:00:00Z").as_deref(), Some("2026-11-30T03:00:00Z"));
        assert_eq!(newest("2026-11-29T02:59:59Z", "2026-11-29T03:00:00Z").as_deref(), Some("2026-11-29T03:00:00Z"));
        assert_eq!(newest("2026-11-29T03:00:00Z", "2026-11-30T02:59:59Z"), None);
        assert_eq!(newest("2026-11-30T00:00:00Z", "2026-11-29T00:00:00Z"), None);
        assert!(nightly.runs_at(time("2026-11-29T03:00:00Z")) && !nightly.runs_at(time("2026-11-29T03:01:00Z")));
    }

    const ZONES: [&str; 6] =
        ["UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "America/Asuncion", "Asia/Kathmandu"];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Against a model that looks at every minute of three days: the clock's face, and which of it was seen before.
        #[test]
        fn every_time_on_the_face_runs_exactly_once(
            zone in prop::sample::select(ZONES.to_vec()), hour in 0_u8..24, minute in 0_u8..60, step in 1_u8..30,
            start in 1_600_000_000_i64..1_900_000_000,
        ) {
            let text = format!("{minute}-59/{step} {hour},{} * * *", (hour + 1) % 24);
            let schedule = schedule(&text, zone);
            let from = Timestamp::from_second(start / 60 * 60).unwrap();
            let until = Timestamp::from_second(from.as_second() + 3 * 86_400).unwrap();
            let tz = TimeZoneDatabase::bundled().get(zone).unwrap();
            let due = |face: DateTime| {
                let (h, m) = (u8::try_from(face.hour()).unwrap(), u8::try_from(face.minute()).unwrap());
                (h == hour || h == (hour + 1) % 24) && m >= minute && (m - minute) % step == 0
            };
            let mut expected = Vec::new();
            let mut shown = tz.to_datetime(Timestamp::from_second(from.as_second() - 86_400).unwrap());
            for second in (from.as_second() - 86_340..=until.as_second()).step_by(60) {
                let at = Timestamp::from_second(second).unwrap();
                let face = tz.to_datetime(at);
                let mut any = false;
                // All the faces between the last one shown and this one, itself included.
                let mut each = shown;
                while each < face {
                    each = each.checked_add(jiff::SignedDuration::from_secs(60)).unwrap();
                    any |= due(each);
                }
                shown = shown.max(face);
                if any && at > from {
                    expected.push(at);
                }
            }
            let mut found = Vec::new();
            let mut at = from;
            while let Some(next) = schedule.next(at).filter(|next| *next <= until) {
                found.push(next);
                at = next;
            }
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(schedule.newest(from, until), expected.last().copied());
            prop_assert!(expected.iter().all(|run| schedule.runs_at(*run)));
        }
    }
}
