// Counts words of a text that it makes up: strings, vectors and a tree of them. Argument: rounds.
use std::collections::BTreeMap;

fn main() {
    let rounds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut state: u64 = 1;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..rounds {
        let mut words = Vec::new();
        for _ in 0..200 {
            state = (state * 1103515245 + 12345) % 2147483648;
            words.push(format!("word{}", state % 5000).repeat(1 + (state % 3) as usize));
        }
        let text = words.join(" ");
        for word in text.split(' ') {
            *counts.entry(word.to_uppercase()).or_insert(0) += 1;
        }
        if counts.len() > 4000 {
            counts.retain(|_, count| *count <= 40);
        }
    }
    println!("{} {}", counts.len(), counts.values().sum::<u64>());
}
