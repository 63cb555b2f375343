use sim::{Options, run_seed};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let cluster = a[1] == "cluster";
    let (from, to): (u64, u64) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let options = Options { cluster, ..Options::default() };
    let mut failures = 0;
    for seed in from..to {
        match run_seed(seed, &options) {
            Ok(t) => println!("{seed} {} {:016x}", t.steps, t.hash),
            Err(f) => {
                failures += 1;
                println!("{seed} FAILED {f}");
            }
        }
    }
    eprintln!("failures {failures}");
}
