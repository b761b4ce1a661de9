use minijinja::{Error, ErrorKind};

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
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A day of the Gregorian calendar, for templates that ask for the date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Date {
    year: u32,
    month: u32,
    day: u32,
}

impl Date {
    /// Reads `YYYY-MM-DD`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let mut number = |n_digits: usize| -> Option<u32> {
            let part = parts.next()?;
            (part.len() == n_digits).then(|| part.parse().ok()).flatten()
        };
        let date = Self { year: number(4)?, month: number(2)?, day: number(2)? };
        let is_valid = parts.next().is_none() && (1..=12).contains(&date.month);
        (is_valid && date.day >= 1 && date.day <= days_in(date.year, date.month)).then_some(date)
    }

    fn day_of_year(self) -> u32 {
        (1..self.month).map(|month| days_in(self.year, month)).sum::<u32>() + self.day
    }

    /// 0 for Monday.
    fn weekday(self) -> usize {
        let before = self.year.saturating_sub(1);
        let days = before * 365 + before / 4 - before / 100 + before / 400 + self.day_of_year() - 1;
        (days % 7) as usize
    }

    /// `strftime` at midnight of this day, for the directives that dates need.
    pub(super) fn format(self, pattern: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut chars = pattern.chars();
        let month = MONTHS.get(self.month as usize - 1).copied().unwrap_or_default();
        let weekday = WEEKDAYS.get(self.weekday()).copied().unwrap_or_default();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => out.push_str(&format!("{:04}", self.year)),
                Some('y') => out.push_str(&format!("{:02}", self.year % 100)),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('e') => out.push_str(&format!("{:2}", self.day)),
                Some('j') => out.push_str(&format!("{:03}", self.day_of_year())),
                Some('B') => out.push_str(month),
                Some('b') => out.push_str(month.get(..3).unwrap_or_default()),
                Some('A') => out.push_str(weekday),
                Some('a') => out.push_str(weekday.get(..3).unwrap_or_default()),
                Some('H' | 'M' | 'S') => out.push_str("00"),
                Some('I') => out.push_str("12"),
                Some('p') => out.push_str("AM"),
                Some('F') => out.push_str(&format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)),
                Some('%') => out.push('%'),
                other => {
                    let name = other.map(String::from).unwrap_or_default();
                    let problem = format!("strftime_now does not know the directive `%{name}`");
                    return Err(Error::new(ErrorKind::InvalidOperation, problem));
                }
            }
        }
        Ok(out)
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_format_as_strftime_does() {
        // python: datetime.date(2026, 1, 31).strftime("%d %b %Y, %A %j %B %y-%m %%"), and so on.
        let pattern = "%d %b %Y, %A %a %j %B %y-%m %% %F";
        let cases = [
            ("2026-01-31", "31 Jan 2026, Saturday Sat 031 January 26-01 % 2026-01-31"),
            ("2024-02-29", "29 Feb 2024, Thursday Thu 060 February 24-02 % 2024-02-29"),
            ("2000-12-31", "31 Dec 2000, Sunday Sun 366 December 00-12 % 2000-12-31"),
        ];
        for (date, expected) in cases {
            assert_eq!(Date::parse(date).unwrap().format(pattern).unwrap(), expected);
        }
        assert!(Date::parse("2026-01-31").unwrap().format("%Q").is_err());
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in
            ["", "2026", "2026-13-01", "2026-00-01", "2023-02-29", "2026-1-1", "2026-01-31-1", "x-01-01"]
        {
            assert_eq!(Date::parse(text), None, "{text}");
        }
    }
}
