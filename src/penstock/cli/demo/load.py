"""The demo's load: a process that inserts, updates, deletes and rolls back in the shop until its standard input ends."""

from __future__ import annotations

import json
import random
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

Connection = psycopg.Connection[tuple[Any, ...]]

WORDS = ("river", "mill", "sluice", "gate", "oak", "brass", "copper", "lantern", "winter", "harbour", "linen", "saddle")
REPORT_SECONDS = 0.5
FIRST_PRODUCTS, FIRST_CUSTOMERS = 60, 200


class Shop:
    """What the load knows of the shop, so that it can choose rows without asking."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)
        self._customers: list[int] = []
        self._orders: list[int] = []
        self._products: list[str] = []
        self._numbers = 0
        self.counts: Counter[str] = Counter()

    def open(self) -> None:
        """The first customers and products."""
        with self._connection.transaction():
            for _ in range(FIRST_PRODUCTS):
                self._add_product()
            for _ in range(FIRST_CUSTOMERS):
                self._add_customer()
        self.counts["commits"] += 1

    def step(self) -> None:
        """One transaction of a kind chosen by chance; about one in twenty is rolled back."""
        kinds: Sequence[tuple[Callable[[], None], int]] = (
            (self._place_order, 40),
            (self._change_status, 20),
            (self._restock, 14),
            (self._add_customer, 6),
            (self._charge_customer, 6),
            (self._cancel_order, 5),
            (self._rename_product, 3),
            (self._move_line, 3),
            (self._rewrite_description, 2),
            (self._add_product, 1),
        )
        work = self._random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        if self._random.random() >= 0.05:
            with self._connection.transaction():
                work()
            self.counts["commits"] += 1
            return
        kept = (list(self._customers), list(self._orders), list(self._products), self.counts.copy())
        with self._connection.transaction(force_rollback=True):
            work()
        self._customers, self._orders, self._products, self.counts = kept
        self.counts["rollbacks"] += 1

    def _add_customer(self) -> None:
        number = self._next()
        name = " ".join(self._random.choices(WORDS, k=2)).title()
        values = (number, name, f"c{number}@example.org", self._random.choice(["DE", "FR", "PL", "JP"]), "1980-02-29")
        self._run("INSERT INTO customers (id, name, email, country, born) VALUES (%s, %s, %s, %s, %s)", *values)
        self._customers.append(number)

    def _add_product(self) -> None:
        sku = f"P-{self._next():06d}"
        title = " ".join(self._random.choices(WORDS, k=3))
        values = (sku, title, self._price(), self._random.randint(0, 500), self._random.random() * 20, self._description())
        self._run("INSERT INTO products VALUES (%s, %s, %s, %s, %s, %s)", *values)
        self._products.append(sku)

    def _place_order(self) -> None:
        number, lines = self._next(), self._random.randint(1, 5)
        customer = self._random.choice(self._customers)
        note = self._random.choice([None, "", "leave at the gate", 'It\'s urgent, "please"'])
        self._run("INSERT INTO orders (id, customer_id, status, note) VALUES (%s, %s, 'new', %s)", number, customer, note)
        for line in range(1, lines + 1):
            values = (number, line, self._random.choice(self._products), self._random.randint(1, 9), self._price())
            self._run("INSERT INTO order_lines VALUES (%s, %s, %s, %s, %s)", *values)
        total = "SELECT sum(quantity * price) FROM order_lines WHERE order_id = %s"
        self._run(f"UPDATE orders SET total = ({total}) WHERE id = %s", number, number)
        self._orders.append(number)

    def _change_status(self) -> None:
        if self._orders:
            status = self._random.choice(["paid", "packed", "sent", "returned"])
            self._run("UPDATE orders SET status = %s WHERE id = %s", status, self._random.choice(self._orders))

    def _restock(self) -> None:
        # The description is not touched, so the log says only that it is unchanged.
        self._run(
            "UPDATE products SET stock = stock + %s WHERE sku = %s",
            self._random.randint(-5, 20),
            self._random.choice(self._products),
        )

    def _charge_customer(self) -> None:
        customer = self._random.choice(self._customers)
        self._run(
            "UPDATE customers SET balance = balance - %s, vip = NOT vip, email = NULL WHERE id = %s", self._price(), customer
        )

    def _cancel_order(self) -> None:
        if len(self._orders) > 50:
            number = self._orders.pop(self._random.randrange(len(self._orders)))
            self._run("DELETE FROM order_lines WHERE order_id = %s", number)
            self._run("DELETE FROM orders WHERE id = %s", number)

    def _rename_product(self) -> None:
        place = self._random.randrange(len(self._products))
        old, new = self._products[place], f"P-{self._next():06d}"
        self._run("UPDATE products SET sku = %s WHERE sku = %s", new, old)
        self._products[place] = new

    def _move_line(self) -> None:
        if self._orders:
            order = self._random.choice(self._orders)
            self._run("UPDATE order_lines SET line = line + 100 WHERE order_id = %s AND line = 1", order)

    def _rewrite_description(self) -> None:
        self._run("UPDATE products SET description = %s WHERE sku = %s", self._description(), self._random.choice(self._products))

    def _run(self, sql: str, *values: object) -> None:
        cursor = self._connection.execute(sql.encode(), values)
        self.counts[sql.split(" ", 1)[0].lower()] += max(cursor.rowcount, 0)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _price(self) -> str:
        return f"{self._random.randint(50, 99999) / 100:.2f}"

    def _description(self) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(2_000, 6_000)))


def main() -> None:
    """Reads one line with dsn, rate and seed, then works at that rate and reports counts until standard input ends."""
    # Ctrl-C at a terminal reaches every process of its group; the demo itself decides when the load ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    try:
        with psycopg.connect(order["dsn"], autocommit=True, application_name="penstock demo load") as connection:
            shop = Shop(connection, int(order["seed"]))
            shop.open()
            _pace(shop, float(order["rate"]))
            _report(shop)
    except psycopg.Error as error:
        sys.exit(str(error).splitlines()[0])


def _pace(shop: Shop, rate: float) -> None:
    start = reported = time.monotonic()
    steps = 0
    while True:
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            _report(shop)
            reported = now
        due = start + steps / rate
        if select.select([sys.stdin], [], [], max(0.0, min(due - now, REPORT_SECONDS)))[0]:
            return
        if time.monotonic() >= due:
            shop.step()
            steps += 1
        # A machine that cannot keep the rate must not answer a pause with a burst.
        start = max(start, time.monotonic() - steps / rate - 1.0)


def _report(shop: Shop) -> None:
    print(json.dumps(shop.counts), flush=True)


if __name__ == "__main__":
    main()
