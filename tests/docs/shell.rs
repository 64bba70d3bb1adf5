//! The commands of a text, as far as their words can be known without running it.

/// Splits a script into commands and these into words. Quotes are taken off; what `$( )` holds is taken as commands of its
/// own; redirections and what follows them are words like others, which nobody looks at.
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let script = script.replace("\\\n", " ");
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some('\''), _) => word.get_or_insert_default().push(letter),
            (_, '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while letters.next_if(|next| *next != '\n').is_some() {},
            (None, '\n' | ';' | '|' | '&' | '(' | ')') => {
                all.last_mut().unwrap().extend(word.take());
                all.push(Vec::new());
            }
            (None, _) if letter.is_whitespace() => all.last_mut().unwrap().extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    all.last_mut().unwrap().extend(word);
    for command in &mut all {
        let words = command.iter().take_while(|word| is_before(word)).count();
        // Of settings alone, they are the command.
        if words < command.len() {
            command.drain(..words);
        }
    }
    all.retain(|command| !command.is_empty());
    all
}

/// Words that stand before a command: settings for it, and the shell's own.
fn is_before(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        || ["do", "then", "else", "if", "while", "!", "{"].contains(&word)
}

#[test]
fn a_script_is_split() {
    let words =
        commands("A=1 make demo B='c d' # no\nx=$(kubectl get \"$y\" | jq -r '.a|b')\nfor a in b; do ls \\\n -l; done");
    let words: Vec<String> = words.iter().map(|command| command.join("·")).collect();
    let expected = ["make·demo·B=c d", "x=$", "kubectl·get·$y", "jq·-r·.a|b", "for·a·in·b", "ls·-l", "done"];
    assert_eq!(words, expected);
}
