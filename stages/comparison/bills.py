"""What was charged, as tables: by run and segment, and by attempt of a campaign."""

from stages.comparison.cells import MISSING, Table, number
from stages.comparison.compare import Comparison
from stages.evidence.ledger import Account, Entry


def segment_table(comparison: Comparison) -> Table:
    rows = []
    for side in comparison.sides:
        for run in side.runs:
            for task, found in run.tasks.items():
                name = f"{run.name}, {task}"
                state = "final" if found.charge.final else "not final"
                if found.charge.booked:
                    state += f"; {' + '.join(found.charge.booked)} from the campaign"
                covers = " + ".join(found.charge.covers) or MISSING
                for part, segment in found.charge.segments.items():
                    rows.append([name, part, f"{segment.seconds:g} s", f"{segment.usd} USD", ""])
                rows.append([name, "total", covers, number(found.charge.usd, 8, "USD"), state])
    return Table("Charges by segment", ["", "segment", "seconds or stages", "charge", "state"], rows)


def campaign_table(account: Account) -> Table:
    rows = [entry_row(entry) for entry in account.attempts]
    rows.append(["recorded", "", "", "", f"{account.recorded_usd} USD", f"of {account.authorization_usd} authorized"])
    columns = ["attempt", "platform", "task", "role", "charge", "state"]
    return Table(f"Campaign {account.name}: {len(account.attempts)} attempts", columns, rows)


def entry_row(entry: Entry) -> list[str]:
    role = entry.role.replace("_", " ") + (f" ({entry.detail.replace('_', ' ')})" if entry.detail else "")
    charge = MISSING if entry.charge_usd is None else f"{entry.charge_usd} USD"
    state = "final" if entry.final else f"held: {entry.held_usd or 'unknown'} USD"
    return [entry.id, entry.platform, entry.task, role, charge, state]
