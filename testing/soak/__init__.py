"""The soak: agents at work for minutes while everything around them fails at random.

    python -m commitline.testing.soak --seconds 120 --seed 7

Runs and plans are started, requests sent to conversations, and intents committed and rolled back,
without pause on three worker processes. People approve, reject, or are away; runs are stopped,
stopped and undone, terminated, and undone later. Meanwhile workers are killed, frozen and told to
go, Postgres is restarted, the connections to it are cut, frozen and delayed, the provider fails
before and after its effects, some requests are sent twice, and some conversations lose their run.
Then all of that ends, it is waited until nobody is at work and nothing is due, people settle a
part of what is unknown, and the world is judged from outside: what the provider did, what the
ledger says and what the models were told must agree (`verdict`, `promises`).

One seed decides what each run does, which faults come and how the provider behaves. What the
faults hit depends on timing too, so a seed makes a soak alike, not the same.
"""
